"""What the agents cost: their CPU beside that of the job that they look after."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ffdl_airflow.core.events import Kind
from tests.benchmarks.figures import table
from tests.chaos.installation import Installation, job_id_of, show

STEPS, EVERY = 9500, 1000
"""About a minute on two cores."""
USED = re.compile(r"([\d.]+) s of CPU used")


def test_cpu_of_agents_beside_the_job(
    installation: Installation, wait_until: Callable[..., Any]
) -> None:
    manifest = installation.digits("cost", steps=STEPS, every=EVERY, step_delay=0.0)
    process = installation.start("run", "-f", manifest)
    job_id = job_id_of(process)
    wait_until(lambda: installation.events(job_id, Kind.RUNNING), message="running")
    agents = installation.agents(job_id)
    seen = dict.fromkeys(agents, 0.0)
    while any([_sample(agents, seen), process.poll() is None and installation.ranks(job_id)]):
        psutil.wait_procs(list(agents.values()), timeout=1.0)
    out, _ = process.communicate(timeout=120)
    events = installation.events(job_id)
    assert process.returncode == 0, out + show(events)
    (ended,) = [event.body for event in events if event.kind is Kind.ATTEMPT_ENDED]
    (running,) = [event for event in events if event.kind is Kind.RUNNING]
    (at,) = [event.at for event in events if event.kind is Kind.ATTEMPT_ENDED]
    told = {name: _told(installation, job_id, name) for name in agents}
    table(
        f"CPU of agents, digits on 2 ranks, {(at - running.at).total_seconds():.0f} s of running",
        {
            "job, CPU s": [ended["cpu_s"]],
            "agents in AttemptEnded, CPU s": [sum(ended["agent_cpu_s"].values())],
            "agents in /proc at the last look, CPU s": [sum(seen.values())],
            "agents by their own last words, CPU s": [sum(told.values())],
            "  coordinator": [told["worker-0"]],
            "  follower": [told["worker-1"]],
            "agents / job, %": [100 * sum(told.values()) / ended["cpu_s"]],
        },
        {"agents / job, %": "1"},
    )
    assert ended["cpu_s"] > 0
    assert sum(seen.values()) <= sum(told.values()) + 0.05
    for name, used in ended["agent_cpu_s"].items():
        assert used <= told[name] + 0.05


def _sample(agents: dict[str, psutil.Process], seen: dict[str, float]) -> bool:
    """Note the CPU seconds of each agent that lives; False when none does."""
    living = False
    for name, agent in agents.items():
        try:
            times = agent.cpu_times()
        except psutil.Error:
            continue
        living = True
        seen[name] = max(seen[name], times.user + times.system)
    return living


def _told(installation: Installation, job_id: str, name: str) -> float:
    folder = installation.settings.state_dir / "jobs" / job_id / "placements" / "1" / "agents"
    found = USED.search(Path(folder / name / "log").read_text())
    assert found is not None
    return float(found.group(1))
