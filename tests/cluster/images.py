"""The images of the bed, made from what this machine has: no registry, no network.

``registry.ffdl.test/python:1`` holds the interpreter that runs the tests, at the path it has here,
with its standard library and the system libraries that wheels expect; no packages. A pod gets those
by a host path, or in a layer of its own (`build_image`). Files are kept beside the tools, under a
hash of what they were made from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tests.cluster import oci, tools
from tests.cluster.places import BedError

PAUSE = "registry.ffdl.test/pause:1"
PYTHON = "registry.ffdl.test/python:1"
NO_PYTHON = "registry.ffdl.test/nopython:1"
BUSYBOX = Path("/bin/busybox")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
NOT_NEEDED = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "ensurepip", "lib2to3",
    "tkinter", "turtledemo",
}  # fmt: skip
_USELESS = re.compile(r"\.a$|\.opt-\d\.pyc$|^_test|^_tkinter")
LIBRARIES = (
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1",
    "libresolv.so.2", "libnss_dns.so.2", "libnss_files.so.2", "libstdc++.so.6", "libgcc_s.so.1",
    "libgomp.so.1", "libz.so.1", "libatomic.so.1",
)  # fmt: skip
"""What `ldd` cannot know: name services are loaded by name, and wheels want C++ and OpenMP.
Those that this machine lacks are left out."""
_LDD_PATH = re.compile(r"(?:=>\s*)?(/\S+)\s+\(0x")


def standard_images() -> list[Path]:
    """Files of the three images, made if they are not there. The first is what each pod needs."""
    return [pause_image(), python_image(), no_python_image()]


def pause_image() -> Path:
    program = tools.path_of("pause")
    return _cached(
        PAUSE,
        [str(program)],
        lambda path: oci.write_image(
            path, PAUSE, lambda layer: layer.file("/pause", program), entrypoint=["/pause"]
        ),
    )


def no_python_image() -> Path:
    """A shell and its applets."""
    return _cached(
        NO_PYTHON,
        _fingerprint([_busybox()]),
        lambda path: oci.write_image(path, NO_PYTHON, _fill_base, env={"PATH": SYSTEM_PATH}),
    )


def python_image() -> Path:
    """The interpreter of the tests and a shell."""
    interpreter = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib"))
    files = [interpreter, *_library_files(library)]
    env = {
        "PATH": f"{interpreter.parent}:{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }

    def fill(layer: oci.Layer) -> None:
        _fill_base(layer)
        for file in files:
            layer.file(str(file), file)
        for file in sorted(_shared_libraries([x for x in files if _is_binary(x)])):
            layer.file(str(Path(os.path.realpath(file.parent), file.name)), file)
        for name in ("python", "python3"):
            layer.link(f"/usr/local/bin/{name}", str(interpreter))
            layer.link(str(interpreter.parent / name), interpreter.name)

    return _cached(
        PYTHON,
        _fingerprint([*files, _busybox()]),
        lambda path: oci.write_image(path, PYTHON, fill, env=env),
    )


def build_image(
    ref: str,
    files: Mapping[str, Path | bytes | str],
    *,
    entrypoint: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    base: Path | None = None,
) -> Path:
    """An image of a test's own: files by their absolute path, on top of the python image.

    A value is the content, or the file or folder to copy. Use a tag other than ``latest``, or the
    kubelet asks the registry. Load it with `Bed.load_image`.
    """
    below = base or python_image()
    content = sorted(_flatten(files))
    digest = hashlib.sha256()
    for path, value in content:
        data = value.read_bytes() if isinstance(value, Path) else value
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    inputs = [digest.hexdigest(), str(below), json.dumps([list(entrypoint), dict(env or {})])]

    def fill(layer: oci.Layer) -> None:
        for path, value in content:
            if isinstance(value, Path):
                layer.file(path, value)
            else:
                layer.data(path, value)

    def write(path: Path) -> None:
        oci.write_image(path, ref, fill, entrypoint=entrypoint, env=env, base=below)

    return _cached(ref, inputs, write)


def _flatten(files: Mapping[str, Path | bytes | str]) -> Iterable[tuple[str, Path | bytes]]:
    for path, value in files.items():
        if isinstance(value, str):
            yield path, value.encode()
        elif isinstance(value, Path) and value.is_dir():
            for file in value.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield f"{path}/{file.relative_to(value)}", file
        else:
            yield path, value


def _fill_base(layer: oci.Layer) -> None:
    """Folders, users, a shell."""
    for name in ("bin", "sbin", "lib", "lib64"):
        layer.folder(f"/usr/{name}")
        layer.link(f"/{name}", f"usr/{name}")
    for name in ("etc", "proc", "sys", "dev", "var", "run", "root"):
        layer.folder(f"/{name}")
    for name in ("tmp", "var/tmp"):
        layer.folder(f"/{name}", mode=0o1777)
    layer.data("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
    layer.data("/etc/group", b"root:x:0:\nuser:x:1000:\n")
    layer.data("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    program = _busybox()
    layer.file("/usr/bin/busybox", program)
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    for applet in listed.stdout.split():
        layer.link(f"/usr/bin/{applet}", "busybox")


def _busybox() -> Path:
    if not BUSYBOX.exists():
        raise BedError(f"{BUSYBOX} is missing: Debian's package busybox-static")
    return BUSYBOX.resolve()


def _library_files(library: Path) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(library):
        inside = Path(folder)
        folders[:] = [x for x in folders if x not in NOT_NEEDED and not x.startswith("config-")]
        found += [inside / name for name in names if not _USELESS.search(name)]
    return sorted(found)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _shared_libraries(programs: list[Path]) -> set[Path]:
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    found = {Path(path) for path in _LDD_PATH.findall(done.stdout)}
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        first = name.partition(" ")[0]
        if first in LIBRARIES and not any(x.name == first for x in found):
            found.add(Path(path))
    return found


def _fingerprint(files: Iterable[Path]) -> list[str]:
    """Names, sizes and times; and this code, which decides what is done with them.

    Byte code comes and goes as programs run: it is copied, and not looked at here.
    """
    ours = [Path(__file__), Path(oci.__file__)]
    lines = [hashlib.sha256(x.read_bytes()).hexdigest() for x in ours]
    for file in [x for x in files if x.suffix != ".pyc"]:
        status = file.stat()
        lines.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return lines


def _cached(ref: str, inputs: list[str], write: Callable[[Path], None]) -> Path:
    """The file made from these inputs; older ones of the same name go."""
    store = tools.root().with_name(f"{tools.root().name}-images")
    store.mkdir(parents=True, exist_ok=True)
    name = ref.rpartition("/")[2].replace(":", "-")
    path = store / f"{name}-{hashlib.sha256(chr(10).join(inputs).encode()).hexdigest()[:16]}.tar"
    if not path.exists():
        write(path)
        for other in store.glob(f"{name}-*.tar"):
            if other != path:
                other.unlink(missing_ok=True)
    return path
