"""A rank that the kernel kills for the memory limit, and one that somebody kills."""

from __future__ import annotations

import pytest

from ffdl_airflow.agent import memory_limit, protocol
from ffdl_airflow.agent.attempt_record import cause_of


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("oom_kill_disable 0\nunder_oom 0\n", None),
    ],
    ids=["v2", "v1", "an-old-kernel"],
)
def test_the_kernel_counts_its_kills(text, kills, tmp_path, monkeypatch):
    counter = tmp_path / "memory.events"
    counter.write_text(text)
    monkeypatch.setattr(memory_limit, "_COUNTERS", (str(tmp_path / "absent"), str(counter)))
    assert memory_limit.kills() == kills


def test_a_rank_that_was_killed_for_the_limit_is_told_so():
    entry = {"replica": "worker-1", "rank": 1, "exit": None, "signal": 9, "oom": True}
    cause = cause_of(entry)
    assert cause["kind"] == protocol.CAUSE_OOM
    assert cause["text"] == (
        "rank 1 of worker-1 was killed, for its replica went over its memory limit"
    )
    assert cause_of({**entry, "oom": False})["kind"] == protocol.CAUSE_SIGNAL
