"""What the agents of a gang read: a plan, and what only the engine knows of its places.

For: the part of ``plan.json`` that is the same wherever gangs run, and the call that starts an
agent on it. What each field means, and which others there are: ``agent/plan.py``. Not for: bringing
it there; the file lies with the token in the placement's folder, and the folder's path is a word of
the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ffdl_airflow.agent import protocol
from ffdl_airflow.core.plan import GangPlan, ReplicaPlan

Document = dict[str, Any]


def gang_document(plan: GangPlan, replicas: Sequence[Document], *, coordinator: Mapping[str, Any],
                  local: bool, **own: Any) -> Document:  # fmt: skip
    """The whole document. ``replicas``: those of :func:`replica_document`, in the plan's order.

    ``coordinator``: where the first replica's agent is met, ``{"unix": path}`` or ``{"host": name,
    "port": number}``. ``local``: an agent sees the processes of all others, and may end them.
    ``own``: further fields, which go before those of the plan.
    """
    return {
        "v": protocol.VERSION, "job": plan.job_id, "placement": plan.placement,
        "placement_id": plan.placement_id, "local": local,
        **asdict(plan.timing), "journal": journal_path(plan), "coordinator": dict(coordinator),
        "replicas": list(replicas), **plan.common, **own,
    }  # fmt: skip


def replica_document(replica: ReplicaPlan, *, folder: str, socket: str, **own: Any) -> Document:
    """One replica: ``folder`` is its own, ``socket`` is short enough (107 bytes) and its own too.

    Its agent makes a copy of the job's code in the folder: a generation is shared, so nobody may
    work in it.
    """
    work: Document = {"cwd": replica.cwd}
    if replica.code is not None:
        work = {"cwd": f"{folder}/work", "code": replica.code}
    return {
        "name": replica.name, "role": replica.role, "index": replica.index, "dir": folder, **work,
        "socket": socket, "slot_locks": [],
        "command": list(replica.command), "env": dict(replica.env),
        "processes": [dict(process) for process in replica.processes],
        "files": dict(replica.files), "tuning": dict(replica.tuning), **own,
    }  # fmt: skip


def journal_path(plan: GangPlan) -> str:
    """Where the coordinator writes what happened, as its replica sees it: with the checkpoints."""
    return f"{plan.common['checkpoint_dir']}/{protocol.JOURNAL_DIR}/{plan.placement}.jsonl"


def agent_command(python: str, *, agent: str, folder: str, replica: str) -> list[str]:
    """The call of a replica's agent. ``agent``: its zipapp, ``folder``: that of the placement.

    Nothing of the Python's own surroundings comes in: neither its variables nor its ``site``.
    """
    return [python, "-E", "-S", agent, folder, replica]
