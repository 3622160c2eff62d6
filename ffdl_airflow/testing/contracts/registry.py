"""What every model registry must do. Subclass :class:`RegistryContract` and give it a registry."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.model import (
    AuditEntry,
    CheckpointRef,
    CodeRef,
    ModelIdentity,
    ModelMetadata,
    PublishRequest,
)
from ffdl_airflow.registries import base

WEIGHTS: Mapping[str, bytes] = {"weights.npz": b"w" * 100_000, "opt/state.bin": b"o" * 10}


def publish_request(directory: Path, files: Mapping[str, bytes] = WEIGHTS, *,
                    name: str = "digits", job: str = "digits-0a1b2c3d4e",
                    version: int | None = None) -> PublishRequest:  # fmt: skip
    """Seal ``files`` as a checkpoint in ``directory`` and return the request to publish it."""
    directory.mkdir(parents=True, exist_ok=True)
    for key, content in files.items():
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(content)
    manifest = protocol.seal_checkpoint(
        str(directory), step=1000, attempt=1, world_size=2, generation="dc6ef72733687264"
    )
    return PublishRequest(
        name=name, version=version, job=job, attempts=2, directory=str(directory),
        checkpoint=CheckpointRef(step=1000, sha256=manifest["sha256"]),
        data={"digits": "dc6ef72733687264"},
        code=CodeRef(generation="0123456789abcdef", gitCommit="f" * 40, gitDirty=False),
        metadata=ModelMetadata(framework="jax", version="0.4.38"), metrics={"accuracy": 0.97},
        slo={"latency": "20ms"}, owner="vision", createdBy="ann",
        createdAt="2025-11-29T21:00:00.000000Z",
    )  # fmt: skip


def identity_of(request: PublishRequest) -> ModelIdentity:
    """What makes the request the same publication as another."""
    return ModelIdentity(
        name=request.name, job=request.job, checkpointSha256=request.checkpoint.sha256
    )


class RegistryContract:
    """Tests that each adapter of ``registries.base.Registry`` has to pass."""

    def make(self, root: Path) -> base.Registry:
        """Return an empty registry that may use the folder."""
        raise NotImplementedError

    @pytest.fixture
    def registry(self, tmp_path: Path) -> base.Registry:
        """Return the registry of this test."""
        return self.make(tmp_path / "registry")

    def test_a_version_has_its_lineage_and_the_checkpoints_hash(
        self, registry: base.Registry, tmp_path: Path
    ) -> None:
        request = publish_request(tmp_path / "step")
        made = registry.publish(request)
        assert (made.name, made.version, made.sha256) == ("digits", 1, request.checkpoint.sha256)
        assert {file.name: file.size for file in made.files} == {
            "weights.npz": 100_000, "opt/state.bin": 10,
        }  # fmt: skip
        kept = made.model_dump(include=set(request.lineage()))
        assert kept == request.lineage()
        assert registry.get("digits") == registry.get("digits", 1) == made
        assert registry.find(identity_of(request)) == made

    def test_a_retry_registers_once(self, registry: base.Registry, tmp_path: Path) -> None:
        request = publish_request(tmp_path / "step")
        assert registry.publish(request) == registry.publish(request)
        assert [version.version for version in registry.list("digits")] == [1]

    def test_same_bytes_of_another_job_are_a_version_of_their_own(
        self, registry: base.Registry, tmp_path: Path
    ) -> None:
        first = registry.publish(publish_request(tmp_path / "a"))
        second = registry.publish(publish_request(tmp_path / "b", job="digits-ffffffffff"))
        assert (first.version, second.version) == (1, 2)
        assert first.sha256 == second.sha256
        assert registry.get("digits").version == 2

    def test_an_explicit_version_of_another_model_is_refused(
        self, registry: base.Registry, tmp_path: Path
    ) -> None:
        mine = publish_request(tmp_path / "a", version=7)
        assert registry.publish(mine).version == registry.publish(mine).version == 7
        with pytest.raises(base.PublishRefused) as caught:
            registry.publish(publish_request(tmp_path / "b", {"w": b"2"}, version=7))
        assert caught.value.code == base.VERSION_TAKEN
        assert caught.value.found == "7"
        with pytest.raises(base.PublishRefused):
            registry.publish(mine.model_copy(update={"version": 8}))
        after = registry.publish(publish_request(tmp_path / "c", {"w": b"3"}))
        assert after.version == 8

    @pytest.mark.parametrize("name", ["..", "a/../../b", "", "Big", "a b", "a..b", "/etc", "x\n"])
    def test_bad_names_are_refused(
        self, registry: base.Registry, tmp_path: Path, name: str
    ) -> None:
        request = publish_request(tmp_path / "step", name=name)
        with pytest.raises(base.PublishRefused) as caught:
            registry.publish(request)
        assert caught.value.code == base.BAD_NAME
        assert registry.list() == []

    def test_what_is_not_there(self, registry: base.Registry, tmp_path: Path) -> None:
        request = publish_request(tmp_path / "step")
        assert registry.find(identity_of(request)) is None
        assert registry.list() == registry.list("digits") == []
        registry.publish(request)
        for name, version, words in [("digit", None, "did you mean digits"), ("digits", 4, "1")]:
            with pytest.raises(base.ModelNotFound) as caught:
                registry.get(name, version)
            assert words in caught.value.cause
            assert caught.value.exit_code == 4

    def test_a_checkpoint_that_changed_is_not_published(
        self, registry: base.Registry, tmp_path: Path
    ) -> None:
        request = publish_request(tmp_path / "step")
        (tmp_path / "step" / "weights.npz").write_bytes(b"x" * 100_000)
        with pytest.raises(base.RegistryUnusable) as caught:
            registry.publish(request)
        assert caught.value.code == base.CHECKPOINT_CHANGED
        assert registry.list() == []

    def test_a_checkpoint_without_files_is_not_published(
        self, registry: base.Registry, tmp_path: Path
    ) -> None:
        with pytest.raises(base.RegistryUnusable) as caught:
            registry.publish(publish_request(tmp_path / "step", {}))
        assert caught.value.code == base.NO_FILES

    def test_the_audit_trail_grows(self, registry: base.Registry, tmp_path: Path) -> None:
        registry.publish(publish_request(tmp_path / "step"))
        entries = [
            AuditEntry(approvedBy=who, approvedAt="2025-11-30T08:00:00Z", change="to production")
            for who in ("ann", "bob")
        ]
        for entry in entries:
            registry.append_audit("digits", 1, entry)
        assert registry.get("digits", 1).auditTrail == tuple(entries)
        assert registry.list()[0].auditTrail == tuple(entries)
        with pytest.raises(base.ModelNotFound):
            registry.append_audit("digits", 2, entries[0])

    def test_names_do_not_meet(self, registry: base.Registry, tmp_path: Path) -> None:
        for name in ("b", "a"):
            registry.publish(publish_request(tmp_path / name, name=name))
        assert [(each.name, each.version) for each in registry.list()] == [("a", 1), ("b", 1)]
