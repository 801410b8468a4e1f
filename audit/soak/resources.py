"""What this process and its children hold, and whether that grew."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

MIB = 1 << 20
SETTLE_SECONDS = 10.0
SPARE_COUNT = 4  # pools open what they need when they first need it
SPARE_MIB, SPARE_SHARE = 48, 0.1


@dataclass(frozen=True)
class ResourceUsage:
    mib: int  # resident, children too
    descriptors: int
    threads: int
    children: int

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, f.name)} {f.name}" for f in fields(self))


def _status(pid: str, name: str) -> int:
    try:
        text = Path("/proc", pid, "status").read_text()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name + ":")), 0)


def _descendants() -> Iterator[str]:
    below: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            below.setdefault(_status(entry.name, "PPid"), []).append(entry.name)
    left = list(below.get(_status("self", "Pid"), []))
    while left:
        yield (pid := left.pop())
        left += below.get(int(pid), [])


def resource_usage() -> ResourceUsage:
    gc.collect()
    children = list(_descendants())
    memory = sum(_status(pid, "VmRSS") for pid in ("self", *children)) >> 10
    return ResourceUsage(memory, len(list(Path("/proc/self/fd").iterdir())), _status("self", "Threads"), len(children))


@dataclass
class LeakDetector:
    """The most that was held while warming up, against which all later looks stand."""

    most: ResourceUsage = ResourceUsage(0, 0, 0, 0)

    def warm(self, now: ResourceUsage) -> None:
        self.most = ResourceUsage(*map(max, astuple(self.most), astuple(now)))

    def grown(self, now: ResourceUsage) -> list[str]:
        limits = ResourceUsage(
            round(self.most.mib * (1 + SPARE_SHARE)) + SPARE_MIB,
            *(count + SPARE_COUNT for count in astuple(self.most)[1:]),
        )
        return [
            f"{f.name} grew from {getattr(self.most, f.name)} to {getattr(now, f.name)}"
            for f in fields(ResourceUsage)
            if getattr(now, f.name) > getattr(limits, f.name)
        ]

    def settled(
        self, resource_usage: Callable[[], ResourceUsage] = resource_usage, seconds: float = SETTLE_SECONDS
    ) -> list[str]:
        """What is too much and stays so: threads and processes need a moment to end."""
        end = time.monotonic() + seconds
        while (grown := self.grown(resource_usage())) and time.monotonic() < end:
            time.sleep(0.1)
        return grown
