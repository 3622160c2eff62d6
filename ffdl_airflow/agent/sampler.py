"""What a rank uses: CPU and memory from ``/proc``, GPUs through ``pynvml`` where that is installed.

What cannot be read is None, never zero: missing telemetry is *unknown*, not idle.
"""

import os
import sys
import time
from typing import Any, Dict, List, Optional, Set

from . import processes
from .log import log

FAMILY_S = 10.0
"""How often a rank's descendants are looked up, which reads a file a thread. Chosen for cost."""


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
    """Mean utilization of the GPUs that a replica sees."""

    def __init__(self, visible: str) -> None:
        self._handles: List[Any] = []
        self._nvml: Any = None
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if names:
            self._open(names)

    def percent(self) -> Optional[float]:
        """Utilization now, 0 to 100; None where no GPU can be read."""
        if self._nvml is None or not self._handles:
            return None
        try:
            read = self._nvml.nvmlDeviceGetUtilizationRates
            rates = [read(handle).gpu for handle in self._handles]
        except Exception as error:  # noqa: BLE001 - a driver's fault must not end a gang
            log("GPU utilization cannot be read: %s" % error)
            self._nvml = None
            return None
        return float(sum(rates)) / len(rates)

    def _open(self, names: List[str]) -> None:
        try:
            if sys.flags.no_site:
                import site  # noqa: PLC0415 - only an agent that has GPUs pays for it

                site.main()
            import pynvml  # noqa: PLC0415 - may be missing

            pynvml.nvmlInit()
            self._handles = [_handle(pynvml, name) for name in names]
            self._nvml = pynvml
        except Exception as error:  # noqa: BLE001 - no pynvml, no driver, unknown device
            log("GPU utilization is unknown: %s" % error)


def visible_gpus(env: Dict[str, str]) -> str:
    """The devices that a rank's environment gives it; empty for none."""
    return env.get("CUDA_VISIBLE_DEVICES", os.environ.get("NVIDIA_VISIBLE_DEVICES", ""))


def _handle(nvml: Any, name: str) -> Any:
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name.encode())
