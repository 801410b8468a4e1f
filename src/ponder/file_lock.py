"""An exclusive lock on an open file, on POSIX and on Windows. It ends with the process, or when the file is closed."""

from __future__ import annotations

import sys
from typing import IO, Any

if sys.platform == "win32":
    import msvcrt

    _FAR_BYTE = 1 << 30  # Windows locks bytes and refuses others to read them: one that no file of ours has

    def try_lock(file: IO[Any]) -> bool:
        """Lock the file, without waiting. False: another process holds the lock."""
        file.seek(_FAR_BYTE)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(file: IO[Any]) -> bool:
        """Lock the file, without waiting. False: another process holds the lock."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
