"""Ending processes for good: ask, wait, kill, until nothing of the job is left.

Works on whatever ``find`` returns at that moment, not on a list made before, because processes
fork while they are being ended.
"""

import contextlib
import os
import signal
from typing import Callable, List, Set

from . import fence, processes
from .log import log
from .loop import Loop
from .plan import Plan

POLL_S = 0.02
POLL_MOST_S = 0.1
KILL_S = 20.0
"""Longest wait after SIGKILL. Chosen: only a process stuck in the kernel needs longer, and then
waiting is no help."""


def send(pids: Set[int], number: int) -> None:
    """Send a signal to each of them; those that are gone or not ours are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(pids: Set[int]) -> None:
    """SIGKILL to all, and to their process groups, so that a fork under way dies as well."""
    for group in processes.groups_of(pids):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    send(pids, signal.SIGKILL)


class Ender:
    """Ends everything that ``find`` finds: SIGTERM, ``term_s`` seconds, SIGKILL.

    ``done`` gets the process ids that are left, normally none.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        find: Callable[[], Set[int]],
        term_s: float,
        done: Callable[[List[int]], None],
    ) -> None:
        self._loop = loop
        self._find = find
        self._done = done
        self._asked: Set[int] = set()
        self._kill_at = loop.now() + term_s
        self._poll_s = POLL_S
        self._step()

    def hurry(self, term_s: float) -> None:
        """Kill no later than ``term_s`` seconds from now."""
        self._kill_at = min(self._kill_at, self._loop.now() + term_s)
        self._poll_s = POLL_S

    def _step(self) -> None:
        found = self._find()
        now = self._loop.now()
        if not found:
            self._loop.soon(lambda: self._done([]))
        elif now > self._kill_at + KILL_S:
            log("these processes cannot be killed: %s" % sorted(found))
            self._loop.soon(lambda: self._done(sorted(found)))
        elif now >= self._kill_at:
            kill(found)
            self._loop.call_later(POLL_S, self._step)
        else:
            send(found - self._asked, signal.SIGTERM)
            self._asked |= found
            self._loop.call_later(min(self._poll_s, self._kill_at - now), self._step)
            self._poll_s = min(POLL_MOST_S, self._poll_s * 1.5)


def sweep(plan: Plan, names: List[str], *, kill_agents: bool) -> Callable[[], Set[int]]:
    """A ``find`` for :class:`Ender`: processes of replicas whose agent is dead, on this host.

    With ``kill_agents`` an agent that is silent but alive (stopped, stuck) is found too, so that it
    cannot wake up later and go on.
    """
    replicas = [plan.replica(name) for name in names]
    silent: Set[int] = set()

    def find() -> Set[int]:
        found: Set[int] = set()
        for replica in replicas:
            if fence.is_free(replica.dir):
                found |= processes.carrying(plan.placement_id, replica.name)
            elif kill_agents:
                pid = fence.agent_pid(replica.dir)
                if pid is not None and pid in processes.carrying(plan.placement_id, None):
                    silent.add(pid)
                # A dying process has no environment any more but still holds its lock.
                found |= {pid for pid in silent if processes.stat(pid) is not None}
        return found - {os.getpid()}

    return find
