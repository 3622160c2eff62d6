"""Building the zipapp that is shipped into every replica.

The same sources give the same bytes, so that two drivers that build it at once do no harm. Byte
code for the building Python lies beside each source: a zipapp is compiled anew at each start
otherwise, which costs more CPU than an agent uses in minutes. Other Pythons pass it over and take
the source.
"""

import hashlib
import importlib.util
import marshal
import os
import sys
import threading
import zipfile
from typing import Dict, List, Tuple

PACKAGE = "ffdl_agent"
MAIN = "import sys\n\nfrom ffdl_agent.main import main\n\nsys.exit(main())\n"
LEFT_OUT = ("bundle.py",)
UNCHECKED_HASH = (1).to_bytes(4, "little")
"""PEP 552: byte code that is taken without a look at its source."""


def build_zipapp(target: str) -> str:
    """Write the zipapp to ``target``, whole or not at all, and return ``target``."""
    entries: List[Tuple[str, bytes]] = []
    for name, source in sorted(_sources().items()):
        entries.append((name, source))
        entries.append((name + "c", _byte_code(name, source)))
    temporary = "%s.%d.%d.tmp" % (target, os.getpid(), threading.get_ident())
    with zipfile.ZipFile(temporary, "w") as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    os.replace(temporary, target)
    return target


def ensure_zipapp(folder: str) -> str:
    """Path of the zipapp of this very version in ``folder``; built where it is missing."""
    digest = hashlib.sha256()
    for name, source in sorted(_sources().items()):
        digest.update(name.encode() + source)
    digest.update(importlib.util.MAGIC_NUMBER)
    target = os.path.join(folder, "ffdl-agent-%s.pyz" % digest.hexdigest()[:12])
    return target if os.path.exists(target) else build_zipapp(target)


def _sources() -> Dict[str, bytes]:
    """Archive name -> source text of everything that goes in."""
    here = os.path.dirname(os.path.abspath(__file__))
    found = {"__main__.py": MAIN.encode()}
    for name in os.listdir(here):
        if name.endswith(".py") and name not in LEFT_OUT:
            found["%s/%s" % (PACKAGE, name)] = _read(os.path.join(here, name))
    found["ffdl.py"] = _read(_trainer_module(here))
    return found


def _trainer_module(here: str) -> str:
    """Path of ``ffdl.py``: installed beside the package, or in the root of a checkout."""
    beside = os.path.join(os.path.dirname(os.path.dirname(here)), "ffdl.py")
    if os.path.isfile(beside):
        return beside
    spec = importlib.util.find_spec("ffdl")
    if spec is None or spec.origin is None:
        message = "ffdl.py is neither at %s nor on the path: the installation is damaged" % beside
        raise FileNotFoundError(message)
    return spec.origin


def _byte_code(name: str, source: bytes) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    # Version 2 of the format has no references, whose use depends on chance (reference counts).
    body = marshal.dumps(code, 2)
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + b"\0" * 8 + body


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":  # what docker/agent/ calls
    build_zipapp(sys.argv[1])
