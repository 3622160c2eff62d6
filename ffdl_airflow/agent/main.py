"""The agent's start: become the one agent of a replica, take its slots, then coordinate or follow.

``python agent.pyz <placement dir> <role>-<index>``. Exit codes: 0 left in order, or there was an
agent already; 2 the call or the plan is wrong; 3 the place could not be taken; 70 a fault of ours.
With ``--ask`` it is no agent but asks one, see ``ask.py``.
"""

import os
import signal
import sys
import time
from typing import Callable, List, Optional

from . import ask, ending, fence, launcher, processes, protocol
from .client import Channel
from .control import Control
from .gang import Gang
from .journal import Journal
from .log import log, log_fault
from .loop import Loop
from .member import Member
from .plan import Plan, PlanError, ReplicaPlan, load_plan
from .replica import Replica
from .server import Server

OK, WRONG_CALL, NO_PLACE, OUR_FAULT = 0, 2, 3, 70


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one agent until its placement is over. Returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == [protocol.ASK]:
        return ask.main(words[1:])
    try:
        folder, name = words
    except ValueError:
        log("usage: agent.pyz <placement dir> <role>-<index>")
        return WRONG_CALL
    fence.close_inherited()
    try:
        plan = load_plan(os.path.abspath(folder))
        replica = plan.replica(name)
    except PlanError as error:
        log(str(error))
        return WRONG_CALL
    os.environ[protocol.ENV_PLACEMENT] = plan.placement_id
    os.makedirs(replica.dir, exist_ok=True)
    if fence.take_replica(replica.dir) is None:
        log("%s has an agent already" % replica.name)
        return OK
    return _take_place(plan, replica)


def _take_place(plan: Plan, replica: ReplicaPlan) -> int:
    with open(os.path.join(plan.dir, protocol.TOKEN_FILE), encoding="utf-8") as file:
        token = file.read().strip()
    stat = processes.stat(os.getpid())
    owner = {
        "v": protocol.VERSION,
        "placement": plan.placement_id,
        "replica": replica.name,
        "pid": os.getpid(),
        "started": stat.started if stat else None,
    }
    try:
        wait_s = plan.limits.slot_wait_s
        for text in fence.take_slots(replica.slot_locks, wait_s=wait_s, owner=owner):
            log("the slot's last owner was %s" % text)
    except (fence.SlotTakenError, OSError) as error:
        log("cannot take the place: %s" % error)
        _say_refused(plan, replica, token=token, why=str(error))
        return NO_PLACE
    if not fence.is_open(plan.dir):
        log("the placement has been ended, nothing to do")
        return OK
    return _serve(plan, replica, token)


def _serve(plan: Plan, replica: ReplicaPlan, token: str) -> int:
    launcher.become_subreaper()
    loop = Loop()
    hands = Replica(loop, plan, replica)
    try:
        if replica.name == plan.coordinator:
            code = _coordinate(loop, plan, hands, token=token)
        else:
            code = _follow(loop, plan, hands, token=token, name=replica.name)
    except Exception:  # noqa: BLE001 - nobody can be told
        _fall(plan, replica.name)
        return OUR_FAULT
    finally:
        hands.close()
    log("left, %.3f s of CPU used" % sum(os.times()[:2]))
    return code


def _coordinate(loop: Loop, plan: Plan, hands: Replica, *, token: str) -> int:
    try:
        journal = Journal(loop, path=plan.journal, placement=plan.placement)
    except OSError as error:
        log("the journal cannot be opened: %s; is the checkpoint directory writable?" % error)
        return NO_PLACE
    gang = Gang(loop, plan, replica=hands, journal=journal, quit_loop=loop.stop)
    server = Server(loop, at=plan.meeting_point, token=token, handler=Control(plan, gang))
    _obey_signals(loop, gang.terminated)
    try:
        gang.start()
        loop.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the gang's story has to tell it
        _fall(plan, plan.coordinator)
        gang.broken(_words(error))
        return OUR_FAULT
    server.close()
    journal.close()
    return OK


def _follow(loop: Loop, plan: Plan, hands: Replica, *, token: str, name: str) -> int:
    member = Member(loop, plan, name=name, replica=hands, token=token, quit_loop=loop.stop)
    _obey_signals(loop, member.terminated)
    try:
        member.start()
        loop.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the gang's story has to tell it
        _fall(plan, name)
        _tell(plan, name, token=token, failed=_words(error))
        return OUR_FAULT
    return OK


def _fall(plan: Plan, name: str) -> None:
    """A fault: the trainer must not outlive a broken agent."""
    log_fault("agent fault")
    _end_at_once(plan, name)


def _words(error: Exception) -> str:
    return "has failed: %s: %s" % (type(error).__name__, error)


def _obey_signals(loop: Loop, terminated: Callable[[], None]) -> None:
    loop.on_signal(signal.SIGTERM, terminated)
    loop.on_signal(signal.SIGINT, terminated)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _say_refused(plan: Plan, replica: ReplicaPlan, *, token: str, why: str) -> None:
    """Tell the gang why this replica will not come, so that nobody waits for it in vain."""
    if replica.name == plan.coordinator:
        journal = Journal(Loop(), path=plan.journal, placement=plan.placement)
        journal.append(protocol.J_RELEASED, None, {"why": why})
        journal.close()
        return
    _tell(plan, replica.name, token=token, failed=why)


def _tell(plan: Plan, name: str, *, token: str, failed: str) -> None:
    """A follower's last word to the coordinator; a loop of its own, for the agent's may be over."""
    loop = Loop()
    channel = Channel(loop, to=plan.meeting_point, token=token)
    body = {"v": 1, "replica": name, "failed": failed}
    channel.post(protocol.PATH_JOIN, body, timeout_s=2.0, done=lambda _s, _d: loop.stop())
    loop.run()


def _end_at_once(plan: Plan, name: str) -> None:
    """Kill everything of this replica, without the loop."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        found = processes.family(os.getpid())
        found += processes.carrying(plan.placement_id, name)
        launcher.reap(lambda _exit: None)
        if not found and launcher.childless():
            return
        ending.kill(found)
        time.sleep(0.02)
