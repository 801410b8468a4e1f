"""A disk that is full: say so, wait, and go on when there is room. A stop signal ends the wait."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ponder import signals

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two attempts: twice as many after each
_TICK = 0.2  # seconds between two looks for a stop signal
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that there is no room. Libraries may keep only the words."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno in _FULL
        if any(os.strerror(number) in str(error) for number in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def patiently(
    write: Callable[[], T], path: Path, needed: int, stopped: Callable[[], bool] = signals.stop_requested
) -> T:
    """What `write` gives, which must leave nothing half-written where it fails. Where the disk is full it is tried
    again until there is room. When the user wants to stop, its error is raised.
    """
    pause, waited, due = FIRST_PAUSE, 0.0, 0.0
    while True:
        try:
            result = write()
        except Exception as why:
            if not is_full(why) or stopped():
                raise
            if waited >= due:  # after 0, 1, 3, 9, ... seconds
                _say(f"the disk is full: {_needs(path, needed)}; waiting until there is room")
                due = max(1.0, 3 * waited)
            if not _wait(pause, stopped):
                raise
        else:
            if waited:
                _say(f"there is room again: {path.name} is written")
            return result
        waited, pause = waited + pause, min(2 * pause, LONGEST_PAUSE)


def _needs(path: Path, needed: int) -> str:
    """For people: how much is missing, and where."""
    said = f"{path} needs {_size(needed)}"
    with contextlib.suppress(OSError):
        there = next(p for p in (path, *path.parents) if p.exists())
        said += f", and {_size(shutil.disk_usage(there).free)} are free"
    return said


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def _wait(seconds: float, stopped: Callable[[], bool]) -> bool:
    """Whether to go on after so many seconds: a stop ends them early."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stopped():
            return False
        time.sleep(min(left, _TICK))
    return not stopped()


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
        print(f"  ! {text}", file=sys.stderr, flush=True)
