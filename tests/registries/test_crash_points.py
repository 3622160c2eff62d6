"""A publication that ends at each of its steps in the file system, one after the other.

Python reports every open, rename, chmod, … to audit hooks; ours ends the process, without any
clean-up, at the n-th of them below the model root. Then a retry has to register once.
"""

import json
import subprocess
import sys
from pathlib import Path

from ffdl_airflow.testing.contracts.registry import publish_request

SCRIPT = """
import itertools, json, os, sys
from pathlib import Path
from ffdl_airflow.core.model import PublishRequest
from ffdl_airflow.registries.store import DirectoryRegistry

EVENTS = {"open", "os.rename", "os.chmod", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile"}
root, step = Path(sys.argv[1]), int(sys.argv[2])
first, second = (PublishRequest.model_validate(each) for each in json.load(sys.stdin))


def crash_at(number, place):
    count = itertools.count(1)

    def hook(event, arguments):
        if event in EVENTS and str(arguments[0]).startswith(str(place)) and next(count) == number:
            os._exit(9)

    sys.addaudithook(hook)


for number in itertools.count(1 + step // 2, step):
    place = root / str(number)
    child = os.fork()
    if child == 0:
        crash_at(number, place)
        DirectoryRegistry(place).publish(first)
        os._exit(0)
    crashed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    registry = DirectoryRegistry(place)
    if number % 2:  # another one comes first and cleans
        registry.publish(second)
    registry.publish(first)
    registry.publish(second)
    print(json.dumps({
        "crashed": crashed, "versions": [each.version for each in registry.list()],
        "jobs": sorted(each.job for each in registry.list()),
        "wrong": [registry.verify("digits", each.version) for each in registry.list()],
        "left": [str(path) for path in place.glob("*/.tmp/*/build")],
    }))
    if not crashed:
        break
"""


def test_an_end_at_any_step_registers_once(tmp_path, rounds):
    step = 1 if rounds(0, soak=1) else 8
    requests = [
        publish_request(tmp_path / job, job=job).model_dump(mode="json") for job in ("a", "b")
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "models"), str(step)],
        input=json.dumps(requests), check=True, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2], timeout=300,
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) >= 3
    for each in results:
        assert each["versions"] == [1, 2]
        assert each["jobs"] == ["a", "b"]
        assert each["wrong"] == [[], []]
        assert each["left"] == []
