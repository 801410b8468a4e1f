"""Refuse sizes that do not fit in memory, before anything of that size is allocated.

The estimates are lower bounds, so nothing is refused that could work. The real need depends on how long answers become.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ponder.errors import UsageError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PROBLEM_BYTES = 2_000  # of a problem that is being solved: its text, its trace, the asyncio task
COMPLETION_BYTES = 1_000  # of an answer of one token: a sequence in the engine, then a step of the trace
ORDER_INDEX_BYTES = 16  # of an index in a shuffled order, in two epochs


def free_memory() -> int:
    """Bytes that this process may still take of the machine's memory. Freed memory that torch's allocator keeps counts
    as taken: on ARM, where it is kept for minutes (`ponder/__init__.py`), there may be more."""
    try:
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(meminfo["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):  # no Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 1 << 30
    try:  # a container's own limit
        limit, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        return max(0, min(free, limit - used + int(stat.get("inactive_file", 0))))  # the page cache is freed
    except (OSError, ValueError):  # no limit
        return free


def peak_memory() -> int:
    """The most bytes that this process has had in memory; 0 on Windows, where it is not asked for."""
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts in bytes, Linux in KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def require_memory(needed_bytes: float, **sizes: int) -> None:
    """Raise if this needs more memory than is free. `sizes`: the settings that it depends on."""
    if needed_bytes < 1 << 28:  # too little to be worth a look
        return
    if needed_bytes > (free := free_memory()):
        listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise UsageError(
            f"{listed} would take at least {needed_bytes / 1e9:,.0f} GB of memory, and {free / 1e9:,.1f} GB are free: "
            f"lower {' or '.join(sizes)}"
        )


def require_trace_memory(problems: Mapping[str, int], answers: Mapping[str, int]) -> None:
    """Raise if so many problems with so many answers each do not fit. The keys are the names of the user's settings."""
    count = n = 1
    for size in problems.values():
        count *= size
    for size in answers.values():
        n *= size
    require_memory(count * (PROBLEM_BYTES + n * COMPLETION_BYTES), **problems, **answers)
