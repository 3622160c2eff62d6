"""Ending processes for good: ask, wait, kill, until nothing of the job is left.

Works on whatever ``find`` returns at that moment, not on a list made before, because processes
fork while they are being ended.
"""

import contextlib
import os
import signal
from typing import Callable, Iterable, List, NamedTuple, Set

from . import fence, processes
from .log import log
from .loop import Loop
from .plan import Plan
from .processes import Stat

POLL_S = 0.02
POLL_MOST_S = 0.1
LOOKS = 3
KILL_S = 20.0
"""Longest wait after SIGKILL. Chosen: only a process stuck in the kernel needs longer, and then
waiting is no help."""


class Found(NamedTuple):
    """What there is to be ended. ``again``: none of it running is no proof that nothing is left."""

    members: List[Stat]
    again: bool


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of them; those that are gone or not ours are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(members: List[Stat]) -> None:
    """SIGKILL to all and to their process groups, so that a fork under way dies as well.

    The group is the one that was seen with the member, also of a zombie, whose group a faster
    child may live on in. Groups of this process's own session are left alone.
    """
    mine = os.getsid(0)
    for group in {member.group for member in members if member.session not in (0, mine)}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    send([member.pid for member in processes.running(members)], signal.SIGKILL)


class Ender:
    """Ends everything that ``find`` finds: SIGTERM, ``term_s`` seconds, SIGKILL.

    ``done`` gets the process ids that are left, normally none.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        find: Callable[[], Found],
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
        living = [member.pid for member in processes.running(found.members)]
        now = self._loop.now()
        if not living and not found.again:
            self._loop.soon(lambda: self._done([]))
        elif now > self._kill_at + KILL_S:
            log("these processes cannot be killed: %s" % sorted(living))
            self._loop.soon(lambda: self._done(sorted(living)))
        elif now >= self._kill_at:
            kill(found.members)
            self._loop.call_later(POLL_S if living else 0.0, self._step)
        else:
            send(set(living) - self._asked, signal.SIGTERM)
            self._asked.update(living)
            self._loop.call_later(min(self._poll_s, self._kill_at - now), self._step)
            self._poll_s = min(POLL_MOST_S, self._poll_s * 1.5)


def sweep(plan: Plan, names: List[str], *, kill_agents: bool) -> Callable[[], Found]:
    """A ``find`` for :class:`Ender`: processes of replicas whose agent is dead, on this host.

    With ``kill_agents`` an agent that is silent but alive (stopped, stuck) is found too, so that it
    cannot wake up later and go on. Nothing found is believed at the third look: these are not our
    children, and a look may miss a process that forks.
    """
    replicas = [plan.replica(name) for name in names]
    silent: Set[int] = set()
    empty_looks = [0]

    def find() -> Found:
        found: List[Stat] = []
        for replica in replicas:
            if fence.is_free(replica.dir):
                found += processes.carrying(plan.placement_id, replica.name)
            elif kill_agents:
                agents = processes.carrying(plan.placement_id, None)
                pid = fence.agent_pid(replica.dir)
                silent.update(agent.pid for agent in agents if agent.pid == pid)
                # A dying process has no environment any more but still holds its lock.
                found += filter(None, map(processes.stat, silent))
        empty_looks[0] = 0 if found else empty_looks[0] + 1
        return Found(found, again=bool(replicas) and empty_looks[0] < LOOKS)

    return find
