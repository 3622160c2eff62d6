"""The hands of an agent: starts, watches and ends the processes of its own replica.

Takes commands (dicts with ``do``) from the coordinator and gives reports (dicts with ``what``);
decides nothing about the gang. The coordinator's own replica is no exception.
"""

import json
import math
import os
import re
import signal
import socket
from typing import Any, Callable, Dict, List, Optional

from . import (
    ending,
    fence,
    launcher,
    memory_limit,
    ports,
    preflight,
    processes,
    protocol,
    sealing,
    tuning,
)
from .launcher import Exit, GoOrder
from .log import log
from .loop import Loop
from .plan import Plan, Process, ReplicaPlan
from .rank_link import Rank, RankLink
from .ranks import RankRecord
from .sampler import GpuReader, visible_gpus
from .tuning import Setting

Report = Callable[[Dict[str, Any]], None]


def _nowhere(_news: Any) -> None:
    """Where news goes before anybody listens."""


class Replica:
    """One replica's processes. ``report`` is where news goes; it must not block."""

    def __init__(self, loop: Loop, plan: Plan, replica: ReplicaPlan) -> None:
        self._loop = loop
        self._plan = plan
        self._replica = replica
        self.report: Report = _nowhere
        self.on_leave: Callable[[str], None] = _nowhere
        self._attempt: Optional[int] = None
        self._records: Dict[int, RankRecord] = {}
        self._by_pid: Dict[int, RankRecord] = {}
        self._ender: Optional[ending.Ender] = None
        self._ports: List[socket.socket] = []
        self._tuned: List[Setting] = []
        self._requests: Dict[str, Rank] = {}
        self._gpus: Optional[GpuReader] = None
        self._oom_kills: Optional[int] = None
        self._link = RankLink(loop, path=replica.rank_socket, deliver=self._from_rank)
        loop.on_signal(signal.SIGCHLD, lambda: launcher.reap(self._ended))

    def handle(self, command: Dict[str, Any]) -> None:
        """Do what the coordinator says."""
        commands: Dict[str, Callable[[Dict[str, Any]], None]] = {
            "prepare": self._prepare,
            "start": self._start,
            "save": self._save,
            "stop": self._stop,
            "sealed": self._sealed,
            "leave": lambda order: self.on_leave(str(order["why"])),
        }
        do = commands.get(str(command.get("do")))
        if do is None:
            log("unknown command %r is passed over" % command.get("do"))
        else:
            do(command)

    def rows(self) -> List[Dict[str, Any]]:
        """A row for each rank of the attempt, for a beat."""
        rows = [record.row() for record in self._records.values()]
        gpus = self._gpus.percents() if self._gpus else {}
        known = [percent for percent in gpus.values() if percent is not None]
        for row in rows:
            row["gpus"] = gpus
            row["gpu_percent"] = round(sum(known) / len(known), 1) if known else None
        return rows

    def end_all(self, term_s: float, done: Callable[[], None]) -> None:
        """End everything of this replica, whatever the coordinator knows."""
        ending.Ender(self._loop, find=self._find, term_s=term_s, done=lambda _left: done())

    def close(self) -> None:
        """Remove what would outlive the agent."""
        self._link.close()

    def _prepare(self, order: Dict[str, Any]) -> None:
        attempt = int(order["attempt"])

        def check() -> Optional[preflight.Fault]:
            if self._plan.progress_regex:
                re.compile(self._plan.progress_regex)
            fault = preflight.check_replica(
                self._plan, self._replica, resume_from=order.get("resume_from"), env=order["env"]
            )
            if fault is not None:
                return fault
            wish = self._replica.tuning
            self._tuned = tuning.decide(wish, tuning.look(wish))
            ports.release(self._ports)
            try:
                self._ports = ports.hold(self._replica)
            except ports.PortError as error:
                return preflight.Fault("port", str(error))
            return None

        def done(fault: Optional[preflight.Fault], error: Optional[BaseException]) -> None:
            if error is not None:
                fault = preflight.Fault("agent", "the check itself failed: %r" % error)
            report: Dict[str, Any] = {"what": "prepared", "attempt": attempt}
            if fault is not None:
                report.update(what="unfit", check=fault.check, text=fault.text)
            else:
                report["ports"] = self._own_ports()
            self.report(report)

        self._loop.in_thread(check, done)

    def _start(self, command: Dict[str, Any]) -> None:
        order = GoOrder(
            attempt=int(command["attempt"]),
            ports=dict(command["ports"]),
            env=dict(command["env"]),
            resume_from=command.get("resume_from"),
            resume_step=command.get("resume_step"),
        )
        if not fence.is_open(self._plan.dir):
            self.report({"what": "start-failed", "attempt": order.attempt, "rank": None,
                         "text": "the placement has ended"})  # fmt: skip
            return
        self._attempt = order.attempt
        self._link.begin(order.attempt)
        self._records.clear()
        self._by_pid.clear()
        self._requests.clear()
        self._oom_kills = memory_limit.kills()
        self._loop.soon(self._open_gpus)  # after the start of the ranks
        ports.release(self._ports)
        try:
            launcher.write_files(self._replica)
            for process in self._replica.processes:
                self._start_process(process, order)
        except Exception as error:  # noqa: BLE001 - ValueError too: whatever the words are
            text = "%s cannot be started: %s" % (self._replica.command[0], error)
            process = self._replica.processes[len(self._records)]
            self.report({"what": "start-failed", "attempt": order.attempt, "rank": process.rank,
                         "text": text})  # fmt: skip
            return
        pids = {str(local): record.pid for local, record in self._records.items()}
        tuned = [list(setting) for setting in self._tuned] if pids else []
        self.report({"what": "started", "attempt": order.attempt, "pids": pids, "tuned": tuned})

    def _start_process(self, process: Process, order: GoOrder) -> None:
        pid = launcher.start(self._plan, self._replica, process, order=order, tuned=self._tuned)
        path = launcher.log_path(self._replica, process, order.attempt)
        record = RankRecord(process, pid, log_path=path, regex=self._plan.progress_regex)
        self._records[process.local_rank] = self._by_pid[pid] = record

    def _own_ports(self) -> Dict[str, int]:
        return {
            protocol.process_name(self._replica.name, local): ports.number(held)
            for local, held in enumerate(self._ports)
        }

    def _open_gpus(self) -> None:
        visible = visible_gpus(self._replica.env)
        if visible and self._gpus is None:
            self._gpus = GpuReader(self._loop, visible)

    def _ended(self, found: Exit) -> None:
        record = self._by_pid.pop(found.pid, None)
        if record is None:
            return
        self._link.drain()
        record.exit = found
        report = dict(record.ended(), what="exited", attempt=self._attempt, row=record.row())
        if found.code != 0:
            report["tail"] = record.tail()
        report["oom"] = found.signal == signal.SIGKILL and self._out_of_memory()
        self.report(report)

    def _out_of_memory(self) -> bool:
        """Whether the memory limit of our container has killed since the attempt began."""
        kills = memory_limit.kills()
        return not self._plan.local and (kills or 0) > (self._oom_kills or 0)

    def _save(self, order: Dict[str, Any]) -> None:
        if order.get("attempt") != self._attempt:
            return
        told = self._link.ask_save(str(order["why"]))
        family = [member.pid for member in processes.family(os.getpid())]
        catching = [pid for pid in family if processes.catches(pid, signal.SIGUSR1)]
        ending.send(catching, signal.SIGUSR1)
        told += len(catching)
        self.report({"what": "save-asked", "attempt": self._attempt, "told": told})

    def _stop(self, order: Dict[str, Any]) -> None:
        attempt, term_s = int(order["attempt"]), float(order["term_s"])
        ports.release(self._ports)
        if self._ender is not None:
            self._ender.hurry(term_s)
            return

        def done(left: List[int]) -> None:
            self._ender = None
            self._link.begin(-1)
            self._write_result(attempt)
            used = sum(os.times()[:2])
            self.report({"what": "stopped", "attempt": attempt, "left": left,
                         "agent_cpu_s": round(used, 3),
                         "ranks": [r.ended() for r in self._records.values()]})  # fmt: skip

        self._ender = ending.Ender(self._loop, find=self._find, term_s=term_s, done=done)

    def _find(self) -> ending.Found:
        below = processes.family(os.getpid())
        launcher.reap(self._ended)
        if processes.running(below) or not launcher.childless():
            return ending.Found(below, again=True)
        carrying = processes.carrying(self._plan.placement_id, self._replica.name)
        return ending.Found(carrying, again=False)

    def _write_result(self, attempt: int) -> None:
        document = {
            "v": protocol.VERSION,
            "replica": self._replica.name,
            "attempt": attempt,
            "at": protocol.now_iso(),
            "ranks": [record.ended() for record in self._records.values()],
        }
        try:
            protocol.write_json(os.path.join(self._replica.dir, protocol.RESULT_FILE), document)
            if self._plan.termination is not None:
                with open(self._plan.termination, "wb") as file:
                    file.write(self._last_words(document))
        except OSError as error:
            log("%s cannot be written: %s" % (protocol.RESULT_FILE, error))

    def _last_words(self, document: Dict[str, Any]) -> bytes:
        """The result and the tail of the first rank that failed, in ``TAIL_BYTES`` at most."""
        failed = [r for r in self._records.values() if r.exit is not None and r.exit.code != 0]
        words = dict(document, tail=failed[0].tail() if failed else "")
        while len(text := json.dumps(words).encode()) > protocol.TAIL_BYTES:
            if words["tail"]:
                words["tail"] = words["tail"][len(text) - protocol.TAIL_BYTES :]
            else:
                words["ranks"] = words["ranks"][: len(words["ranks"]) // 2]
        return text

    def _sealed(self, answer: Dict[str, Any]) -> None:
        self._link.save_wish = None
        rank = self._requests.pop(str(answer["request"]), None)
        if rank is not None:
            keys = ("step", "ok", "path", "error", "note")
            rank.send(dict({key: answer.get(key) for key in keys}, t="checkpoint"))

    def _from_rank(self, rank: Rank, kind: str, message: Dict[str, Any]) -> None:
        record = self._record_of(rank)
        if record is None:
            return
        record.connected = True
        if kind == "progress":
            _take_progress(record, message)
        elif kind in ("checkpoint", "checkpoint-abort"):
            self._report_checkpoint(rank, kind, message)

    def _report_checkpoint(self, rank: Rank, kind: str, message: Dict[str, Any]) -> None:
        folder = str(message["folder"])
        sealing.part_path(self._plan.checkpoint_dir, folder)  # a bad name ends the connection
        writer = "%s/%d/%d" % (self._replica.name, rank.rank or 0, rank.pid)
        request = "%s/%d" % (writer, int(message["step"]))
        self._requests[request] = rank
        self.report({"what": kind, "attempt": self._attempt, "request": request,
                     "writer": writer, "folder": folder,
                     "rank": rank.rank, "step": int(message["step"]),
                     "reason": message.get("reason"),
                     "shards": int(message.get("shards", 1))})  # fmt: skip

    def _record_of(self, rank: Rank) -> Optional[RankRecord]:
        """The process that a connected rank belongs to; ranks of torchrun or mpirun share it."""
        records = list(self._records.values())
        for record in records:
            if record.rank == rank.rank:
                return record
        return records[0] if records else None


def _take_progress(record: RankRecord, message: Dict[str, Any]) -> None:
    step, doing = message.get("step"), message.get("doing")
    metrics = {  # JSON knows no NaN: a value that is not finite is sent as null
        str(name): float(value) if math.isfinite(value) else None
        for name, value in dict(message.get("metrics") or {}).items()
        if isinstance(value, (int, float))
    }
    steps = dict(message.get("metric_steps") or {})
    record.progress.take(
        None if step is None else int(step),
        doing=None if doing is None else str(doing),
        metrics=metrics,
        metric_steps={name: steps[name] for name in metrics if name in steps},
    )
    if message.get("samples") is not None:
        record.progress.samples_are(float(message["samples"]))
