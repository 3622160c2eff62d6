"""A mover that ends at each of its steps in the file system, one after the other.

Python reports every open, rename, chmod, … to audit hooks; ours ends the process, without any
clean-up, at the n-th of them below the cache. Then another mover has to bring it to the end.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import itertools, json, os, sys
from pathlib import Path
from ffdl_airflow.agent import detached, protocol
from ffdl_airflow.stores import generations, mover
from ffdl_airflow.stores.cache import GenerationCache
from ffdl_airflow.stores.layout import StoreLayout

EVENTS = {"open", "os.rename", "os.link", "os.chmod", "os.mkdir", "os.remove", "os.rmdir"}
root, case, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def crash_at(number):
    count = itertools.count(1)

    def hook(event, arguments):
        if event in EVENTS and str(arguments[0]).startswith(str(root)) and next(count) == number:
            os._exit(9)

    sys.addaudithook(hook)


def run(work, number=None):
    child = os.fork()  # importing takes long, so each mover is a copy of this process
    if child == 0:
        sys.stderr = open(os.devnull, "w")
        if number is not None:
            crash_at(number)
        mover.main([work.path("request.json")])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def move(cache, source, job, number=None):
    layout = StoreLayout(cache.cache_dir, "digits")
    work = detached.Work(str(layout.work(source)))
    work.claim(job)
    request = {"v": 1, "cache_dir": str(cache.cache_dir), "store": "digits", "source": source}
    protocol.write_json(work.path("request.json"), request)
    crashed = run(work, number) == 9
    if crashed:
        run(work)
    return crashed, cache.ensure("digits", source, job=job)


for number in itertools.count(1 + step // 2, step):
    place = root / str(number)
    files = {"a": b"1" * 9000, "d/b": b"2", "d/e/c": b"", "x": b"gone"}
    for name, content in files.items():
        (place / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "src" / name).write_bytes(content)
    (place / "src" / "none").mkdir()
    cache, source = GenerationCache(place / "cache"), {"kind": "local", "path": str(place / "src")}
    if case != "new":
        before = move(cache, source, "before")[1]
    if case == "changed":
        (place / "src" / "d" / "b").write_bytes(b"3")
        (place / "src" / "x").unlink()
    if case == "damaged":
        (before.path / "d").chmod(0o755)
        (before.path / "d" / "b").unlink()
    crashed, state = move(cache, source, "job-1", number)
    print(json.dumps({
        "number": number, "crashed": crashed, "state": state.state, "generation": state.generation,
        "error": str(state.error), "wrong": cache.verify("digits", state.generation or "0" * 16),
        "folder": bool(state.path and (state.path / "none").is_dir()),
        "left": [str(path) for path in place.glob("cache/*/tmp/*/build")],
        "modes": sorted({oct(p.stat().st_mode & 0o777) for p in state.path.rglob("*")}),
    }))
    if not crashed:
        break
"""


@pytest.mark.parametrize("case", ["new", "changed", "damaged"])
def test_an_end_at_any_step_does_no_harm(tmp_path, rounds, case):
    step = 1 if rounds(0, soak=1) else 15
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), case, str(step)],
        check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], timeout=300,
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) >= 3
    assert [each for each in results if each["state"] != "ready" or each["wrong"]] == []
    assert {each["generation"] for each in results} == {results[-1]["generation"]}
    assert all(each["folder"] for each in results)
    assert {tuple(each["modes"]) for each in results} == {("0o444", "0o555")}
    assert [each for each in results if each["left"]] == []
