"""A control group below our own, where the machine allows one: it bounds a worker's memory and processes together.

Without one, resource limits bound each process alone, and a Python program cannot start a second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_count = itertools.count()


class ControlGroup:
    """A control group for one worker. `folders` is empty where this user may not create one."""

    def __init__(self, memory: int, processes: int) -> None:
        name = f"ponder-{os.getpid()}-{next(_count)}"
        self.folders: list[str] = []
        self._memory: Path | None = None
        for parent, limits in _parents(memory, processes):
            if not (parent / "cgroup.procs").exists():  # the path belongs to another mount namespace
                self.close()
                return
            _sweep(parent)
            folder = parent / name
            try:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # left by a killed host with our process id
                folder.mkdir()
                self.folders.append(str(folder))
                for file, value in limits.items():
                    if (folder / file).exists():
                        (folder / file).write_text(str(value))
            except OSError:
                self.close()
                return
            if any(file.startswith("memory") for file in limits):
                self._memory = folder

    def oom_kills(self) -> int:
        """How often the kernel killed a process in here for its memory."""
        if self._memory is None:
            return 0
        for file in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                rows = dict(line.split() for line in (self._memory / file).read_text().splitlines())
                return int(rows.get("oom_kill", 0))
        return 0

    def close(self) -> None:
        """Remove the folders. A process that is being reaped keeps one for a moment, so this retries."""
        for folder in self.folders:
            for _ in range(200):
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
        self.folders = []


def _parents(memory: int, processes: int) -> Iterator[tuple[Path, dict[str, int]]]:
    """Our own control groups, and the limits to write into a new group below each."""
    try:
        ours = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for number, controllers, path in ours:
        below = path.lstrip("/")
        if number == "0" and (ROOT / "cgroup.controllers").exists():  # version 2: one tree
            parent = ROOT / below
            try:
                delegated = (parent / "cgroup.subtree_control").read_text().split()
            except OSError:
                continue
            if {"memory", "pids"} <= set(delegated):
                yield parent, {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes}
        elif controllers == "memory":
            yield ROOT / "memory" / below, {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
        elif controllers == "pids":
            yield ROOT / "pids" / below, {"pids.max": processes}


def _sweep(parent: Path) -> None:
    """Remove groups that a killed host left behind."""
    for folder in parent.glob("ponder-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):
                folder.rmdir()
