"""A gang from afar: what is asked of it, and from when on nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_airflow.agent import protocol
from ffdl_airflow.engines.base import AgentAway
from ffdl_airflow.engines.kubernetes.gang import RemoteGang


class Agent:
    """Answers with what is in its journal; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.journal = [{"seq": 1, "kind": protocol.J_PLACED}]

    def news(self, *, journal: int, wait_s: float) -> dict[str, Any]:
        self.asked.append("news")
        new = [entry for entry in self.journal if int(str(entry["seq"])) > journal]
        return {"seq": len(self.journal), "state": protocol.HOLDING, "journal": new}

    def renew(self, hold_s: float) -> None:
        self.asked.append("renew")


@pytest.mark.parametrize("by", ["answer", "volume"])
def test_a_gang_that_has_left_is_not_asked_any_more(by: str) -> None:
    """Its address may be gone before its pod is: each question would wait out its time."""
    agent = Agent()
    gang = RemoteGang(agent, lives=lambda: False)  # type: ignore[arg-type]
    gang.look(0)
    gang.renew(60.0)
    last = {"seq": 2, "kind": protocol.J_RELEASED}
    if by == "answer":
        agent.journal.append(last)
        assert gang.look(1)[1] == [last]
    else:
        gang.heed([last])
    agent.asked.clear()
    with pytest.raises(AgentAway, match="has left"):
        gang.renew(60.0)
    with pytest.raises(AgentAway):
        gang.status()
    assert agent.asked == []
