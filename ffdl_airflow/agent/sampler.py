"""What a rank uses: CPU and memory from ``/proc``, GPUs through ``pynvml`` where that is installed.

What cannot be read is None, never zero: missing telemetry is *unknown*, not idle.
"""

import os
import sys
import time
from typing import Any, Dict, Optional, Set

from . import processes
from .log import log
from .loop import Loop

FAMILY_S = 10.0
"""How often a rank's descendants are looked up, which reads a file a thread. Chosen for cost."""


MOST_PERCENT = 100.0
"""What is above is no reading: drivers and exporters report huge numbers for "blank"."""
ALL, NONE = "all", ("void", "none")
"""Words of ``NVIDIA_VISIBLE_DEVICES`` (documentation of the NVIDIA container toolkit)."""
SHORTEST_S = 0.05
"""Below this the kernel's clock ticks (10 ms) are too coarse for a percentage."""


class ProcessSampler:
    """CPU and memory of a process and its descendants since the last sample."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._family: Set[int] = set()
        self._family_at: Optional[float] = None
        self._before: Dict[int, float] = {}
        self._at = time.monotonic()
        self.cpu_percent: Optional[float] = None
        self.rss_bytes: Optional[int] = None

    def sample(self) -> None:
        """Read the figures; 100 % is one core."""
        now = time.monotonic()
        if self._family_at is None or now - self._family_at > FAMILY_S:
            self._family = {member.pid for member in processes.family(self._pid)}
            self._family_at = now
        found = [stat for stat in map(processes.stat, self._family | {self._pid}) if stat]
        used = {stat.pid: stat.cpu_s for stat in found}
        grown = sum(max(0.0, cpu - self._before.get(pid, 0.0)) for pid, cpu in used.items())
        if now - self._at > SHORTEST_S:
            self.cpu_percent = round(100.0 * grown / (now - self._at), 1)
            self._before, self._at = used, now
        self.rss_bytes = sum(stat.rss_bytes for stat in found)


class GpuSampler:
    """Utilization of each GPU that a replica sees, by the name that the replica knows it by."""

    def __init__(self, visible: str) -> None:
        self.names = [name.strip() for name in visible.split(",") if name.strip()]
        self._handles: Dict[str, Any] = {}
        self._nvml: Any = None
        self._troubles: Set[str] = set()
        if self.names:
            self._open()

    def percents(self) -> Dict[str, Optional[float]]:
        """Utilization now, 0 to 100; None for a GPU that cannot be read now."""
        return {name: self._percent(name) for name in self.names}

    def _percent(self, name: str) -> Optional[float]:
        if name not in self._handles:
            return None
        try:
            found = float(self._nvml.nvmlDeviceGetUtilizationRates(self._handles[name]).gpu)
        except Exception as error:  # noqa: BLE001 - a driver's fault must not end a gang
            self._say("GPU %s cannot be read: %s" % (name, error))
            return None
        return found if 0 <= found <= MOST_PERCENT else None

    def _say(self, trouble: str) -> None:
        """Once: it comes with every sample."""
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            log(trouble)

    def _open(self) -> None:
        try:
            if sys.flags.no_site:
                import site  # noqa: PLC0415 - only an agent that has GPUs pays for it

                site.main()
            import pynvml  # noqa: PLC0415 - may be missing

            pynvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - no pynvml, no driver
            self._say("GPU utilization is unknown: %s" % error)
            return
        self._nvml = pynvml
        if self.names == [ALL]:
            self.names = [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        for name in self.names:
            try:
                self._handles[name] = _handle(pynvml, name)
            except Exception as error:  # noqa: BLE001 - unknown device
                self._say("GPU %s is not known: %s" % (name, error))


class GpuReader:
    """A :class:`GpuSampler` beside the loop: a driver that is slow must not make the agent silent.

    Opening the devices of a host can take many seconds, and a reading from a sick one for ever.
    """

    def __init__(self, loop: Loop, visible: str) -> None:
        self._loop = loop
        self._sampler: Optional[GpuSampler] = None
        self._percents: Dict[str, Optional[float]] = {}
        self._reading = False
        loop.in_thread(lambda: GpuSampler(visible), self._opened)

    def percents(self) -> Dict[str, Optional[float]]:
        """The reading that the call before has asked for; None where the driver still works on it.

        Empty until the devices are open.
        """
        found = dict.fromkeys(self._percents) if self._reading else self._percents
        self._read()
        return found

    def _opened(self, sampler: Optional[GpuSampler], error: Optional[BaseException]) -> None:
        if sampler is None:
            log("GPU utilization is unknown: %s" % error)
            return
        self._sampler = sampler
        self._percents = dict.fromkeys(sampler.names)
        self._read()

    def _read(self) -> None:
        if self._sampler is not None and not self._reading:
            self._reading = True
            self._loop.in_thread(self._sampler.percents, self._was_read)

    def _was_read(
        self, found: Optional[Dict[str, Optional[float]]], error: Optional[BaseException]
    ) -> None:
        self._reading = False
        self._percents = found if found is not None else dict.fromkeys(self._percents)
        if error is not None:
            log("the GPUs cannot be read: %s" % error)


def visible_gpus(env: Dict[str, str]) -> str:
    """The devices that a rank's environment gives it; empty for none."""
    given = env.get("CUDA_VISIBLE_DEVICES", os.environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    return "" if given in NONE else given


def _handle(nvml: Any, name: str) -> Any:
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name.encode())
