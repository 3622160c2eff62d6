"""Whether the kernel has killed for the memory limit around this agent.

A limit kills the biggest process, not the container (cgroup v1, and v2 without
``memory.oom.group``), and whoever starts containers says nothing of it as long as the agent lives.
So the kernel's own counter is read. Of use in a pod only: elsewhere the group around us is not the
replica's alone.
"""

from typing import Optional

_COUNTERS = (
    "/sys/fs/cgroup/memory.events",  # v2
    "/sys/fs/cgroup/memory/memory.oom_control",  # v1
)
_KEY = "oom_kill"


def kills() -> Optional[int]:
    """Processes that were killed for the limit so far; None where the kernel does not tell."""
    for path in _COUNTERS:
        try:
            with open(path, encoding="ascii") as file:
                words = [line.split() for line in file]
        except OSError:
            continue
        found = [int(pair[1]) for pair in words if len(pair) > 1 and pair[0] == _KEY]
        if found:
            return found[0]
    return None
