"""Does it fit? Sizes that a user gives are weighed before anything of that size is made.

The weights are what a thing takes at the least, so nothing is refused that could work; what it really takes depends on
how long answers become.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ponder.errors import UsageError

PROBLEM_BYTES = 2_000  # bytes of a problem that is being solved: its text, its trace, the task that runs it
COMPLETION_BYTES = 1_000  # bytes of an answer of one token: a row of the engine, then a step of the trace
ORDER_INDEX_BYTES = 16  # bytes of a place in a shuffled order, in two epochs


def free_memory() -> int:
    """Bytes that this process may still take of the machine's memory."""
    try:
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(told["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):  # no Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 1 << 30
    try:  # a container's own bound
        most, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
        files = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        return max(0, min(free, most - used + int(files.get("inactive_file", 0))))  # files read are let go
    except (OSError, ValueError):  # there is none
        return free


def require_memory(needed_bytes: float, **sizes: int) -> None:
    """Refuse what needs more memory than there is. `sizes`: the settings that make it so large."""
    if needed_bytes < 1 << 28:  # looking takes longer than it is worth
        return
    if needed_bytes > (free := free_memory()):
        given = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise UsageError(
            f"{given} would take at least {needed_bytes / 1e9:,.0f} GB of memory, and {free / 1e9:,.1f} GB are free: "
            f"lower {' or '.join(sizes)}"
        )


def require_trace_memory(problems: Mapping[str, int], answers: Mapping[str, int]) -> None:
    """So many problems, each with so many answers, held at once. Both with the names that the user knows."""
    count = n = 1
    for size in problems.values():
        count *= size
    for size in answers.values():
        n *= size
    require_memory(count * (PROBLEM_BYTES + n * COMPLETION_BYTES), **problems, **answers)
