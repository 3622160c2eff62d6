"""What the API server says to a job's pods is told before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ffdl_airflow.core.job import TrainingJob
from ffdl_airflow.engines.kubernetes.engine import KubernetesEngine
from ffdl_airflow.engines.kubernetes.preview import MOST_BYTES, Preview
from ffdl_airflow.engines.kubernetes.settings import Volume
from ffdl_airflow.testing import builders
from tests.engines.kubernetes import fake_api
from tests.engines.kubernetes.fake_api import FakeApi, status

INVALID = status(422, "Pod is invalid", "Invalid") | {"details": {"causes": [
    {"field": "spec.containers[0].volumeMounts[4].mountPath", "message": "must be unique"},
]}}  # fmt: skip


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api.serving() as made:
        made.forbidden.add(("list", "priorityclasses"))
        yield made


def job(**spec: Any) -> TrainingJob:
    training = {"framework": "custom", "command": ["train"], "image": "reg/train:1"}
    return builders.job(**{"training": training, **spec})


def told(api: FakeApi, found: TrainingJob) -> list[str]:
    return [str(problem) for problem in KubernetesEngine(api.settings()).check(found)]


def test_one_pod_of_each_role_is_judged_and_nothing_is_made(api: FakeApi) -> None:
    seen: list[str] = []

    def judge(pod: Any) -> fake_api.Answer:
        seen.append(pod["spec"]["hostname"])
        return 201, pod

    api.judged = judge
    roles = [{"name": "worker", "replicas": 3}, {"name": "ps", "replicas": 2}]
    training = {"framework": "tensorflow", "command": ["train"], "image": "reg/train:1"}
    assert told(api, job(training=training, replicas=None, roles=roles)) == []
    assert sorted(seen) == ["ps-0", "worker-0"]
    assert not api.named("pods")


@pytest.mark.parametrize(
    ("code", "body", "text"),
    [
        (422, INVALID, "the pods of worker: spec.containers[0].volumeMounts[4].mountPath: found"),
        (400, status(400, "cannot unmarshal string into []v1.Toleration"), "cannot unmarshal"),
        (403, status(403, 'violates PodSecurity "restricted:latest"'), "PodSecurity"),
        (403, status(403, "exceeded quota: training"), None),
        (403, status(403, 'User "d" cannot create resource "pods" in'), None),
        (403, status(403, "no PriorityClass with name x was found"), None),
        (404, status(404, "no such namespace"), None),
        (500, status(500, "etcd has no leader"), None),
    ],
)
def test_only_what_no_later_try_helps_is_a_fault_of_the_job(
    api: FakeApi, code: int, body: Any, text: str | None
) -> None:
    api.judged = lambda pod: (code, body)
    found = told(api, job())
    if text is None:
        assert found == []
    else:
        (line,) = found
        assert text in line


def test_a_plan_that_no_secret_could_hold(api: FakeApi) -> None:
    (problem,) = Preview(api.settings()).check(job(replicas=5000))
    assert problem.path == "spec.replicas"
    assert f"at most {MOST_BYTES} bytes" in problem.allowed


def test_folders_that_no_pod_sees(api: FakeApi) -> None:
    """Pods would write their checkpoints to a disk of their own, and find no data."""
    volumes = (Volume(claim="a", path="/mnt/a"), Volume(claim="b", path="/mnt/b", read_only=True))
    here = (("cache_dir", "/var/cache"), ("checkpoint_root", "/mnt/b/checkpoints"))
    engine = KubernetesEngine(api.settings(volumes=volumes, folders=here))
    code = {"framework": "custom", "code": "src", "entryPoint": "x.py", "image": "reg/train:1"}
    told = [str(problem) for problem in engine.check(job(training=code))]
    cache, root = told
    assert cache.startswith(
        "[ffdl] cache_dir: found /var/cache, allowed: a folder on one of [ffdl]"
    )
    assert cache.endswith("volumes (/mnt/a, /mnt/b)")
    assert root.startswith(
        "[ffdl] checkpoint_root: found /mnt/b/checkpoints, allowed: volume b mou"
    )
    own = {"checkpoint": {"every": 1, "path": "/mnt/abc"}}
    (path,) = engine.check(job(**own))
    assert path.path == "spec.checkpoint.path"
    assert engine.check(job(checkpoint={"every": 1, "path": "/mnt/a/b"})) == []
