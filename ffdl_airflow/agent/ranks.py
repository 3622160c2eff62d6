"""What one replica knows about each of its ranks: process, progress, end.

A row of this travels with every beat and ends in the status document. Durations are measured on
this host's own clock and sent as durations, so that clocks of hosts need not agree.
"""

import math
import os
import re
from collections import deque
from typing import Any, Deque, Dict, Optional, Pattern, Tuple

from . import launcher, protocol
from .launcher import Exit
from .loop import Loop
from .plan import Process
from .sampler import ProcessSampler

STEP_TIMES, FEWEST_STEPS = 50, 3
"""Step times kept for the median, and the steps that they must cover to mean anything. Chosen."""
RATE_WINDOW_S = 10.0
"""What "of late" means for samples per second. Chosen."""
LAST_LINE_BYTES = 512
READ_MOST_BYTES = 256 << 10
"""Log bytes that are searched for progress between two beats; what is beyond is skipped."""


class Progress:
    """Steps as a rank reports them, and the time between them."""

    def __init__(self) -> None:
        self.step: Optional[int] = None
        self.doing: Optional[str] = None
        self.metrics: Dict[str, Optional[float]] = {}
        self.metric_steps: Dict[str, Optional[int]] = {}
        self._samples: Deque[Tuple[float, float]] = deque()
        self.at: Optional[str] = None
        self.step_at: Optional[str] = None
        self.first_step_at: Optional[str] = None
        self.first_step: Optional[int] = None
        self._times: Deque[Tuple[float, int]] = deque(maxlen=STEP_TIMES)
        self._since: Optional[float] = None
        self._base: Optional[float] = None

    def take(
        self,
        step: Optional[int],
        *,
        doing: Optional[str],
        metrics: Dict[str, Optional[float]],
        metric_steps: Optional[Dict[str, Optional[int]]] = None,
    ) -> None:
        """A rank says that it has done ``step`` or that it does something else now.

        ``metric_steps``: the step that each metric is of, where that is not ``step``.
        """
        now = Loop.now()
        self.at = protocol.now_iso()
        if doing is not None and doing != self.doing:
            self.doing = doing
            self._since, self._base = now, None
        self.metrics.update(metrics)
        self.metric_steps.update(dict.fromkeys(metrics, self.step if step is None else step))
        self.metric_steps.update(metric_steps or {})
        if step is not None and step != self.step:
            self._advance(step, now)

    def samples_are(self, total: float) -> None:
        """Samples that the rank has worked on since it started."""
        now = Loop.now()
        self._samples.append((now, total))
        while len(self._samples) > 1 and self._samples[1][0] < now - RATE_WINDOW_S:
            self._samples.popleft()

    def samples_per_s(self) -> Optional[float]:
        """Samples per second of late; sinks while none come. None where none are reported."""
        if not self._samples:
            return None
        first_at, first = self._samples[0]
        passed_s = Loop.now() - first_at
        return round((self._samples[-1][1] - first) / passed_s, 3) if passed_s > 0 else None

    def step_time_s(self) -> Optional[float]:
        """Median time of a step; None while too few were measured."""
        if sum(steps for _, steps in self._times) < FEWEST_STEPS:
            return None
        times = sorted(time_s for time_s, _ in self._times)
        return times[len(times) // 2]

    def since_step_s(self) -> Optional[float]:
        """Time without a step while nothing else was being done; None before the first."""
        return None if self._since is None or self.step is None else Loop.now() - self._since

    def _advance(self, step: int, now: float) -> None:
        if self.first_step is None:
            self.first_step, self.first_step_at = step, self.at
        elif self._base is not None and self.step is not None and step > self.step:
            steps = step - self.step
            self._times.append(((now - self._base) / steps, steps))
        self.step, self.step_at = step, self.at
        self._since = self._base = now


class RankRecord:
    """One rank of the running attempt."""

    def __init__(self, process: Process, pid: int, *, log_path: str, regex: Optional[str]) -> None:
        self.rank = process.rank
        self.local_rank = process.local_rank
        self.pid = pid
        self.exit: Optional[Exit] = None
        self.connected = False
        self.progress = Progress()
        self.sampler = ProcessSampler(pid)
        self._log_path = log_path
        self._regex = re.compile(regex) if regex else None
        self._read = 0
        self._last_line = ""

    def row(self) -> Dict[str, Any]:
        """The rank's line in a beat; reads what the log has new."""
        self._follow_log()
        if self.exit is None:
            self.sampler.sample()
        progress = self.progress
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "pid": self.pid,
            "state": "running" if self.exit is None else "exited",
            "exit": self.exit.code if self.exit else None,
            "signal": self.exit.signal if self.exit else None,
            "connected": self.connected,
            "step": progress.step,
            "step_at": progress.step_at,
            "first_step": progress.first_step,
            "first_step_at": progress.first_step_at,
            "doing": progress.doing,
            "metrics": dict(progress.metrics),
            "metric_steps": dict(progress.metric_steps),
            "samples_per_s": progress.samples_per_s(),
            "step_time_s": progress.step_time_s(),
            "since_step_s": progress.since_step_s(),
            "follows_log": self._regex is not None,
            "cpu_percent": self.sampler.cpu_percent if self.exit is None else 0.0,
            "rss_bytes": self.sampler.rss_bytes if self.exit is None else 0,
            "gpu_percent": None,
            "gpus": {},
            "last_line": self._last_line,
            "at": progress.at or protocol.now_iso(),
        }

    def ended(self) -> Dict[str, Any]:
        """The rank's entry in result files and in the report of its end."""
        found = self.exit
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "pid": self.pid,
            "exit": found.code if found else None,
            "signal": found.signal if found else None,
            "ended_at": found.ended_at if found else None,
            "cpu_s": round(found.cpu_s, 3) if found else None,
            "max_rss_bytes": found.max_rss_bytes if found else None,
        }

    def tail(self) -> str:
        """The end of the rank's log, at most ``protocol.TAIL_BYTES``."""
        return launcher.tail(self._log_path, protocol.TAIL_BYTES)

    def _follow_log(self) -> None:
        try:
            size = os.stat(self._log_path).st_size
            if size <= self._read:
                return
            start = max(self._read if self._regex else size - LAST_LINE_BYTES, 0)
            start = max(start, size - READ_MOST_BYTES)
            with open(self._log_path, "rb") as file:
                file.seek(start)
                data = file.read(size - start)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            self._last_line = lines[-1][-LAST_LINE_BYTES:]
        if self._regex is not None:
            self._search(self._regex, data[:whole].decode("utf-8", "replace"))
            self._read = start + whole
        else:
            self._read = size

    def _search(self, regex: Pattern[str], text: str) -> None:
        for match in regex.finditer(text):
            named = {name: _number(value) for name, value in match.groupdict().items()}
            step = named.pop("step", None)
            metrics = dict(named)
            if step is not None:
                self.progress.take(int(step), doing=protocol.TRAINING, metrics=metrics)


def _number(text: Optional[str]) -> Optional[float]:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
