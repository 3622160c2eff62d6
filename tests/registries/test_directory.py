"""The directory registry: the contract, and what is special to folders."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.model import AuditEntry, PublishRequest
from ffdl_airflow.registries import base
from ffdl_airflow.registries.publisher import describe_error
from ffdl_airflow.registries.store import DirectoryRegistry
from ffdl_airflow.testing.contracts.registry import (
    RegistryContract,
    identity_of,
    publish_request,
)

REPOSITORY = Path(__file__).parents[2]


class TestDirectoryRegistry(RegistryContract):
    def make(self, root):
        return DirectoryRegistry(root)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "models"


def test_a_version_on_disk(root, tmp_path):
    registry = DirectoryRegistry(root)
    request = publish_request(tmp_path / "step")
    made = registry.publish(request)
    folder = root / "digits" / "1"
    assert registry.path("digits", 1) == folder
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in [folder, *folder.rglob("*")]} == {
        "1": 0o555, "MODEL.json": 0o444, "AUDIT.jsonl": 0o644, "weights.npz": 0o444,
        "opt": 0o555, "state.bin": 0o444,
    }  # fmt: skip
    document = protocol.read_json(folder / "MODEL.json")
    assert document["v"] == 1
    assert "auditTrail" not in document
    assert str(tmp_path) not in str(document)
    assert made.sha256 == protocol.check_checkpoint(str(tmp_path / "step"))[0]["sha256"]
    assert registry.verify("digits", 1) == ()


def test_a_model_root_can_be_moved(root, tmp_path):
    request = publish_request(tmp_path / "step")
    made = DirectoryRegistry(root).publish(request)
    shutil.copytree(root, tmp_path / "elsewhere")
    moved = DirectoryRegistry(tmp_path / "elsewhere")
    assert moved.get("digits") == made
    assert moved.verify("digits", 1) == ()
    assert moved.publish(request) == made


def test_verify_tells_what_is_wrong(root, tmp_path):
    registry = DirectoryRegistry(root)
    registry.publish(publish_request(tmp_path / "step"))
    folder = root / "digits" / "1"
    for path in (folder, folder / "opt"):
        path.chmod(0o755)
    (folder / "weights.npz").chmod(0o644)
    (folder / "weights.npz").write_bytes(b"w" * 99_999 + b"x")
    (folder / "opt" / "state.bin").unlink()
    (folder / "extra").write_bytes(b"")
    assert registry.verify("digits", 1) == (
        "extra is not part of it", "opt/state.bin is missing", "weights.npz is changed",
    )  # fmt: skip


def test_a_version_without_document_is_told(root, tmp_path):
    registry = DirectoryRegistry(root)
    registry.publish(publish_request(tmp_path / "a"))
    (root / "digits" / "4").mkdir()
    assert [each.version for each in registry.list()] == [1]
    with pytest.raises(base.RegistryUnusable, match=r"no readable MODEL\.json") as caught:
        registry.get("digits")
    assert caught.value.code == base.BROKEN_VERSION
    assert registry.publish(publish_request(tmp_path / "b", {"w": b"2"})).version == 5


@pytest.mark.parametrize("name", ["MODEL.json", "AUDIT.jsonl"])
def test_names_that_the_registry_needs_are_refused(root, tmp_path, name):
    with pytest.raises(base.PublishRefused, match=name) as caught:
        DirectoryRegistry(root).publish(publish_request(tmp_path / "step", {name: b"{}"}))
    assert caught.value.code == base.RESERVED_NAME
    kept = publish_request(tmp_path / "other", {f"sub/{name}": b"{}"})
    assert DirectoryRegistry(root).publish(kept).version == 1


def test_what_is_not_a_number_is_no_number(root, tmp_path):
    request = publish_request(tmp_path / "step")
    made = DirectoryRegistry(root).publish(
        request.model_copy(update={"metrics": {}})
        .model_validate({**request.model_dump(), "metrics": {"loss": float("nan"), "acc": 1}})
    )  # fmt: skip
    assert made.metrics == {"loss": None, "acc": 1.0}
    assert "NaN" not in (root / "digits" / "1" / "MODEL.json").read_text()


def test_an_audit_line_that_a_crash_cut_off_does_no_harm(root, tmp_path):
    registry = DirectoryRegistry(root)
    registry.publish(publish_request(tmp_path / "step"))
    with (root / "digits" / "1" / "AUDIT.jsonl").open("a") as trail:
        trail.write('{"approvedBy": "a')
    entry = AuditEntry(approvedBy="bob", approvedAt="2025-11-30T08:00:00Z", change="x\ny")
    assert registry.append_audit("digits", 1, entry).auditTrail == (entry,)


def test_a_registry_that_cannot_be_written(tmp_path):
    with pytest.raises(base.RegistryUnusable) as caught:
        DirectoryRegistry("/proc/models").publish(publish_request(tmp_path / "step"))
    assert caught.value.code == base.UNUSABLE
    assert DirectoryRegistry("/proc/models").list() == []


def test_every_leaf_of_the_errors_has_reason_fault_and_next_step():
    for kind in (base.PublishRefused, base.ModelNotFound, base.RegistryUnusable):
        document = describe_error(kind("x", code=base.UNUSABLE))
        assert document["code"]
        assert document["fault"] in ("user", "infrastructure")
        assert document["next_step"]


SCRIPT = """
import json, os, sys
from ffdl_airflow.core.model import PublishRequest
from ffdl_airflow.registries.store import DirectoryRegistry
root, lists = sys.argv[1], json.load(sys.stdin)
gate, opener = os.pipe()
for number, documents in enumerate(lists):  # one process each, forked: importing takes longer
    if os.fork() == 0:
        requests = [PublishRequest.model_validate(document) for document in documents]
        os.close(opener)
        os.read(gate, 1)  # all go when the parent closes its end
        versions = [DirectoryRegistry(root).publish(request).version for request in requests]
        os.write(1, (json.dumps([number, versions]) + chr(10)).encode())
        os._exit(0)
os.close(opener)
sys.exit(sum(os.wait()[1] for _ in lists) and 1)
"""


def race(root: Path, lists: list[list[PublishRequest]]) -> list[list[int]]:
    """The versions that processes got which publish these requests at the same moment."""
    documents = [[request.model_dump(mode="json") for request in each] for each in lists]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root)], input=json.dumps(documents), check=True,
        stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, timeout=120,
    )  # fmt: skip
    return [versions for _, versions in sorted(map(json.loads, done.stdout.splitlines()))]


def test_eight_processes_at_once(root, tmp_path):
    """Each publishes two of its own, in between one that all publish: 17 versions, no gap."""
    shared = publish_request(tmp_path / "shared", {"w": b"shared"})
    lists = []
    for number in range(8):
        mine = [
            publish_request(tmp_path / f"{number}-{k}", {"w": f"{number}-{k}".encode()})
            for k in (1, 2)
        ]
        lists.append([mine[0], shared, mine[1]])
    versions = race(root, lists)
    assert len({found[1] for found in versions}) == 1
    own = [found[place] for found in versions for place in (0, 2)]
    assert sorted({*own, versions[0][1]}) == list(range(1, 18))
    registry = DirectoryRegistry(root)
    for requests, found in zip(lists, versions, strict=True):
        for request, version in zip(requests, found, strict=True):
            assert registry.find(identity_of(request)).version == version
            assert registry.verify("digits", version) == ()
    assert not list((root / "digits" / ".tmp").glob("*/build"))


def test_what_a_dead_publication_left_is_cleaned_by_the_next(root, tmp_path):
    dead = publish_request(tmp_path / "dead", {"w": b"dead"})
    work = DirectoryRegistry(root).work(identity_of(dead))
    (work / "build").mkdir(parents=True)
    (work / "build" / "w").write_bytes(b"de")
    (work / "build").chmod(0o555)
    made = DirectoryRegistry(root).publish(publish_request(tmp_path / "next"))
    assert made.version == 1
    assert not work.exists()
    assert DirectoryRegistry(root).publish(dead).version == 2


def test_a_half_made_build_of_the_same_identity_is_begun_anew(root, tmp_path):
    request = publish_request(tmp_path / "step")
    work = DirectoryRegistry(root).work(identity_of(request))
    (work / "build" / "opt").mkdir(parents=True)
    (work / "build" / "opt" / "junk").write_bytes(b"1")
    (work / "build" / "opt").chmod(0o555)
    made = DirectoryRegistry(root).publish(request)
    assert sorted(file.name for file in made.files) == ["opt/state.bin", "weights.npz"]
    assert not (root / "digits" / "1" / "opt" / "junk").exists()
