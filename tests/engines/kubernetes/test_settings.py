"""Settings of an installation that could never work are refused before anything is made."""

from __future__ import annotations

import pytest

from ffdl_airflow.core.errors import SpecError
from ffdl_airflow.engines.kubernetes.settings import KubernetesSettings, from_values


def read(**values: str) -> KubernetesSettings:
    return from_values({"agent_image": "a", **values}, installation_key=b"k")


def refused(**values: str) -> tuple[str, str, str]:
    """(key, found, allowed) of the one problem."""
    with pytest.raises(SpecError) as caught:
        read(**values)
    (problem,) = caught.value.problems
    return problem.path, problem.found, problem.allowed


@pytest.mark.parametrize("path", ["/", "//", "/.", "/dev/shm", "/dev/shm/x", "/ffdl", "/ffdl/run",
                                  "/a/../b", "/a/..", "/a b", "/a\tb", "//ffdl"])  # fmt: skip
@pytest.mark.parametrize("more", ["", ":ro"])
def test_a_volume_lies_where_nothing_else_is(path: str, more: str) -> None:
    key, found, allowed = refused(volumes=f"claim:{path}{more}")
    assert (key, found) == ("volumes", repr(f"claim:{path}{more}"))
    assert allowed.endswith("without .. and white space")


@pytest.mark.parametrize("claim", ["", "-a", "a-", "a..b", ".a", "A", "a_b", "a b", "a" * 254])
def test_a_claim_has_a_name(claim: str) -> None:
    assert refused(volumes=f"{claim}:/mnt")[2] == "a DNS name as the claim's"


@pytest.mark.parametrize("text", ["claim", "claim:mnt", "claim:/mnt:rw", "claim:/mnt:ro:ro", ":"])
def test_a_volume_is_a_claim_and_a_path(text: str) -> None:
    assert refused(volumes=text)[2] == "claim:/path or claim:/path:ro"


def test_a_path_has_one_volume() -> None:
    for second in ("b:/mnt/x", "b:/mnt/x/", "b://mnt/x", "a:/mnt//x:ro"):
        found = refused(volumes=f"a:/mnt/x,{second}")
        assert found == ("volumes", "/mnt/x twice", "each path once")


def test_volumes_are_read() -> None:
    found = read(volumes="a.b-1:/mnt/..x, a.b-1:/mnt/y:ro, c:/ffdl-data").volumes
    assert [(one.claim, one.path, one.read_only) for one in found] == [
        ("a.b-1", "/mnt/..x", False), ("a.b-1", "/mnt/y", True), ("c", "/ffdl-data", False),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["-1", "x", "2147483648", "9" * 5000, "1.5", "\u0661"])
def test_ids_are_numbers_that_a_cluster_takes(text: str) -> None:
    for key, least in (("run_as_user", 1), ("fs_group", 0)):
        found = refused(**{key: text})
        assert found == (key, repr(text), f"{least} to 2147483647, or image")


def test_the_pods_are_not_root() -> None:
    assert refused(run_as_user="0") == ("run_as_user", "'0'", "1 to 2147483647, or image")
    assert read(fs_group="0").fs_group == 0
    assert read(run_as_user="2147483647").run_as_user == 2**31 - 1
    assert read(run_as_user="image").run_as_user is None
    assert read().run_as_user == 1000


@pytest.mark.parametrize("text", ["a b", "a\n", "@", "a@", "@sha256:ab", "http://reg/a", "/a", "a/",
                                  "reg/a:", "https://reg/a:1", "a@sha256", ":1"])  # fmt: skip
@pytest.mark.parametrize("key", ["agent_image", "mover_image"])
def test_an_image_has_a_name(key: str, text: str) -> None:
    found = refused(**{key: text})
    assert found[:2] == (key, repr(text))
    assert found[2].startswith("the name of an image")


@pytest.mark.parametrize("text", [
    "a", "a:1", "reg.example/team/a_b:1.0-x", "localhost:5000/a",
    "reg:5000/a/b__c@sha256:" + "0a" * 32, "[::1]:5000/a:1", "127.0.0.1/a:v1@sha256:" + "f" * 64,
])  # fmt: skip
def test_names_of_images_are_taken(text: str) -> None:
    assert read(agent_image=text, mover_image=text).mover_image == text


@pytest.mark.parametrize(("key", "text"), [
    *(("service_account", text) for text in ("A", "a b", "a_b", "-a", "a.", "a" * 254)),
    *(("pod_python", text) for text in ("python3 -u", "python3;", "a\tb", "$(python)")),
    *(("namespace", text) for text in ("A b", "a.b")),
])  # fmt: skip
def test_other_texts_have_their_form(key: str, text: str) -> None:
    assert refused(**{key: text})[:2] == (key, repr(text))


def test_other_texts_are_taken() -> None:
    found = read(service_account="a.b-1", pod_python="/opt/py@3.11/bin/python3")
    assert (found.service_account, found.python) == ("a.b-1", "/opt/py@3.11/bin/python3")


@pytest.mark.parametrize("key", ["-a", "a-", "a/b/c", "/a", "a/", ".", "A/b", "a" * 64, "a..b/c",
                                 "a.b/-", "b" * 254 + "/a"])  # fmt: skip
def test_a_toleration_has_the_key_of_a_label(key: str) -> None:
    for text in (f"{key}:NoSchedule", f"{key}=x:NoSchedule"):
        found = refused(tolerations=text)
        assert found[:2] == ("tolerations", repr(text))
        assert found[2].startswith("key=value:Effect or key:Effect")


@pytest.mark.parametrize("value", ["-a", "a-", "a b", "a" * 64])
def test_and_the_value_of_one(value: str) -> None:
    assert refused(tolerations=f"a={value}:NoSchedule")[0] == "tolerations"


def test_tolerations_are_read() -> None:
    found = read(tolerations="nvidia.com/gpu:NoSchedule,a_B=:NoExecute,x.y/Z=1:PreferNoSchedule")
    assert [(one.key, one.value) for one in found.tolerations] == [
        ("nvidia.com/gpu", None), ("a_B", ""), ("x.y/Z", "1"),
    ]  # fmt: skip


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        read(volumes="a:/,b:/ffdl", run_as_user="0", service_account="A", mover_image="@")
    assert [problem.path for problem in caught.value.problems] == [
        "service_account", "mover_image", "volumes", "volumes", "run_as_user",
    ]  # fmt: skip
