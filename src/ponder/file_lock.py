"""An exclusive lock on an open file, on POSIX and on Windows. It ends with the process, or when the file is closed."""

from __future__ import annotations

import sys
from typing import IO, Any

from ponder.errors import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FAR_BYTE = 1 << 30  # Windows locks bytes, which others then cannot read: one that no file of ours has


def try_lock(file: IO[Any]) -> bool:
    """Lock the file, without waiting. False: another process holds the lock."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif sys.platform == "win32":
            import msvcrt

            file.seek(_FAR_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            raise RunError("this system cannot lock files: run ponder on Linux, macOS or Windows")
    except OSError:
        return False
    return True
