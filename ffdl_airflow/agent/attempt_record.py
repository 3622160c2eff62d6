"""What is known of one attempt: times, exits, steps, cause. Facts in, ``AttemptEnded`` out."""

import time
from typing import Any, Dict, List, Optional, Tuple

from . import launcher, protocol
from .detect import RankView
from .plan import Plan

Cause = Dict[str, Any]
Entry = Dict[str, Any]


def make_cause(
    kind: str, text: str, *, replica: Optional[str] = None, rank: Optional[int] = None
) -> Cause:
    """The reason of an end; ``text`` is one sentence for people."""
    return {
        "kind": kind, "replica": replica, "rank": rank, "exit": None, "signal": None, "text": text,
    }  # fmt: skip


def cause_of(entry: Entry) -> Cause:
    """A rank's own end as the cause."""
    if entry.get("oom"):
        kind = protocol.CAUSE_OOM
        how = "was killed, for its replica went over its memory limit"
    elif entry["signal"] is not None:
        kind = protocol.CAUSE_SIGNAL
        how = "was killed by %s" % launcher.signal_name(entry["signal"])
    else:
        kind, how = protocol.CAUSE_EXIT, "exited with code %s" % entry["exit"]
    text = "%s %s" % (protocol.who(entry["replica"], entry["rank"]), how)
    cause = make_cause(kind, text, replica=entry["replica"], rank=entry["rank"])
    return dict(cause, exit=entry["exit"], signal=entry["signal"])


def public(entry: Entry) -> Entry:
    """An exit as the journal shows it."""
    keys = ("replica", "rank", "local_rank", "exit", "signal", "pid", "ended_at")
    return {key: entry[key] for key in keys}


class Record:
    """The facts of one attempt."""

    def __init__(self, plan: Plan, attempt: int, resume_step: Optional[int]) -> None:
        self._plan = plan
        self.attempt = attempt
        self.resume_step = resume_step
        self.cause: Optional[Cause] = None
        self.go_at = protocol.now_iso()
        self.running_at: Optional[str] = None
        self.ended_at = self.go_at
        self.first_step: Optional[int] = None
        self.first_step_at: Optional[str] = None
        self.last_step: Optional[int] = None
        self.last_checkpoint: Optional[int] = None
        self._running_since: Optional[float] = None
        self._ended_at: Optional[float] = None
        self._exits: Dict[Tuple[str, int], Entry] = {}
        self._left: List[int] = []
        self._cpu_s: Dict[str, float] = {}
        self._tuned: Dict[Tuple[str, str, str], List[str]] = {}

    @property
    def ok(self) -> bool:
        """Whether the attempt ended well."""
        return self.cause is not None and self.cause["kind"] == protocol.CAUSE_OK

    def started(self, replica: str, pids: Dict[str, int], *, tuned: List[List[str]]) -> None:
        """A replica has started its processes; ``pids`` by their local number.

        ``tuned``: (name, value, why) of the settings that were decided there.
        """
        for name, value, why in tuned:
            known = self._tuned.setdefault((name, value, why), [])
            known.append(replica)
        for process in self._plan.replica(replica).processes:
            entry = {"replica": replica, "rank": process.rank, "local_rank": process.local_rank,
                     "pid": pids[str(process.local_rank)], "exit": None, "signal": None,
                     "ended_at": None, "failed": False, "ended": False}  # fmt: skip
            self._exits.setdefault((replica, process.local_rank), entry)

    def run(self) -> Dict[str, Any]:
        """All have started. Returns the body of ``Running``."""
        self.running_at = protocol.now_iso()
        self._running_since = time.monotonic()
        tuned = [
            {"name": name, "value": value, "why": why, "replicas": len(replicas)}
            for (name, value, why), replicas in sorted(self._tuned.items())
        ]
        return {"started_at": self.running_at, "tuned": tuned}

    def running_s(self) -> float:
        """Seconds since Running, 0 before."""
        if self._running_since is None:
            return 0.0
        return (self._ended_at or time.monotonic()) - self._running_since

    def see(self, views: List[RankView]) -> None:
        """Take note of the steps that rows show."""
        for row in (view.row for view in views):
            if row["step"] is None:
                continue
            if self.first_step is None:
                self.first_step, self.first_step_at = row["first_step"], row["first_step_at"]
            self.last_step = max(self.last_step or 0, row["step"])

    def exited(self, replica: str, report: Dict[str, Any]) -> Entry:
        """A rank has ended. Returns its entry; ``failed`` says that it counts as a failure."""
        keys = ("rank", "local_rank", "pid", "exit", "signal", "ended_at")
        entry = {key: report[key] for key in keys}
        failed = report["exit"] != 0 and replica not in self._plan.evaluators
        entry.update(
            replica=replica,
            failed=failed,
            ended=True,
            tail=report.get("tail", ""),
            oom=bool(report.get("oom")),
            cpu_s=report.get("cpu_s"),
            max_rss_bytes=report.get("max_rss_bytes"),
        )
        self._exits[(replica, int(report["local_rank"]))] = entry
        return entry

    def stopped(self, replica: str, report: Dict[str, Any]) -> None:
        """A replica has no process any more, or says which could not be ended."""
        self._left += [int(pid) for pid in report["left"]]
        self._cpu_s[replica] = float(report.get("agent_cpu_s", 0.0))
        self._ended_at = time.monotonic()
        self.ended_at = protocol.now_iso()

    def running(self, replicas: List[str]) -> bool:
        """Whether a rank of these replicas still runs or has not been started yet."""
        expected = [
            (name, process.local_rank)
            for name in replicas
            for process in self._plan.replica(name).processes
        ]
        return any(not self._exits.get(key, {}).get("ended") for key in expected)

    def failures(self) -> List[Entry]:
        """Ranks that failed, the earliest first."""
        failed = [entry for entry in self._exits.values() if entry["failed"]]
        return sorted(failed, key=lambda entry: str(entry["ended_at"]))

    def first_failure(self) -> Optional[Entry]:
        """The earliest failure of all."""
        failed = self.failures()
        return failed[0] if failed else None

    def body(self) -> Dict[str, Any]:
        """The body of ``AttemptEnded``."""
        cause = self.cause or make_cause(protocol.CAUSE_STOP, "ended")
        if self._left:
            text = "%s; processes %s could not be ended" % (cause["text"], self._left)
            cause = dict(cause, text=text)
        slots = sum(max(1, len(replica.slot_locks)) for replica in self._plan.replicas)
        return {
            "ok": self.ok,
            "cause": cause,
            "go_at": self.go_at,
            "running_at": self.running_at,
            "ended_at": self.ended_at,
            "first_step": self.first_step,
            "first_step_at": self.first_step_at,
            "last_step": self.last_step,
            "last_checkpoint": self.last_checkpoint,
            "ranks": [self._rank(entry) for _, entry in sorted(self._exits.items())],
            "tail": self._tail(cause),
            "slot_seconds_running": round(self.running_s() * slots, 3),
            "cpu_s": round(sum(entry.get("cpu_s") or 0.0 for entry in self._exits.values()), 3),
            "agent_cpu_s": self._cpu_s,
        }

    def _tail(self, cause: Cause) -> str:
        if cause["kind"] in (protocol.CAUSE_EXIT, protocol.CAUSE_SIGNAL, protocol.CAUSE_OOM):
            entry = self._entry(cause)
            return str(entry.get("tail", ""))[-protocol.TAIL_BYTES :]
        if cause["kind"] in (protocol.CAUSE_HANG, protocol.CAUSE_START):
            replica = self._plan.replica(cause["replica"])
            for process in replica.processes:
                if process.rank == cause["rank"]:
                    path = launcher.log_path(replica, process, self.attempt)
                    return launcher.tail(path, protocol.TAIL_BYTES)
        return ""

    def _entry(self, cause: Cause) -> Entry:
        """The failed process that the cause names; the first, where it has no rank."""
        for entry in self.failures():
            if (entry["replica"], entry["rank"]) == (cause["replica"], cause["rank"]):
                return entry
        return {}

    @staticmethod
    def _rank(entry: Entry) -> Entry:
        keys = ("replica", "rank", "local_rank", "exit", "signal", "ended_at", "cpu_s",
                "max_rss_bytes")  # fmt: skip
        return {key: entry.get(key) for key in keys}
