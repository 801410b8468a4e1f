"""Retry writes while the disk is full: warn, wait, and continue when there is space. A stop signal ends the wait."""

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
from ponder.terminal import format_bytes

T = TypeVar("T")

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0  # between two attempts; doubles after each
_POLL_SECONDS = 0.2  # between two checks for a stop signal
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the disk is full. Some libraries keep only the message."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno in _DISK_FULL_ERRNOS
        if any(os.strerror(number) in str(error) for number in _DISK_FULL_ERRNOS):
            return True
        error = error.__cause__ or error.__context__
    return False


def retry_while_disk_full(
    write: Callable[[], T], path: Path, needed: int, stopped: Callable[[], bool] = signals.stop_requested
) -> T:
    """The result of `write`, which must leave nothing half-written when it fails. While the disk is full, it is called
    again until there is space. If the user asks to stop, the last error is raised.
    """
    pause, waited, due = FIRST_RETRY_SECONDS, 0.0, 0.0
    while True:
        try:
            result = write()
        except Exception as error:
            if not is_disk_full(error) or stopped():
                raise
            if waited >= due:  # after 0, 1, 3, 9, ... seconds
                _warn(f"the disk is full: {_describe_need(path, needed)}; waiting until there is room")
                due = max(1.0, 3 * waited)
            if not _wait(pause, stopped):
                raise
        else:
            if waited:
                _warn(f"there is room again: {path.name} is written")
            return result
        waited, pause = waited + pause, min(2 * pause, MAX_RETRY_SECONDS)


def _describe_need(path: Path, needed: int) -> str:
    """How much space a file needs, and how much is free there. Of a first checkpoint the size of the model is not known
    yet."""
    text = f"{path} needs at least {format_bytes(needed)}"
    with contextlib.suppress(OSError):
        there = next(p for p in (path, *path.parents) if p.exists())
        text += f", and {format_bytes(shutil.disk_usage(there).free)} are free"
    return text


def _wait(seconds: float, stopped: Callable[[], bool]) -> bool:
    """Sleep; False if the user asked to stop, which ends the sleep early."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stopped():
            return False
        time.sleep(min(left, _POLL_SECONDS))
    return not stopped()


def _warn(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
        print(f"  ! {text}", file=sys.stderr, flush=True)
