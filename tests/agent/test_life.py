"""A placement from its agents' start to their leave."""

from __future__ import annotations

SHORT = "import os; print('hello from', os.environ['RANK'], os.environ['MASTER_PORT'])"


def test_a_gang_holds_runs_and_leaves(make_placement):
    placement = make_placement(SHORT, replicas=2).up()
    assert placement.go()[0] == 200
    body = placement.ended()
    assert body["ok"], placement.story()
    placement.wait_gone()
    kinds = [entry["kind"] for entry in placement.journal()]
    assert kinds == [
        "Placed", "Reserved", "Running", "RankExited", "RankExited", "AttemptEnded", "Released",
    ]  # fmt: skip
    assert [entry["seq"] for entry in placement.journal()] == list(range(1, 8))
    assert placement.rank_log(0).split()[3] == placement.rank_log(1).split()[3]
    assert all(agent.returncode == 0 for agent in placement.agents.values())
