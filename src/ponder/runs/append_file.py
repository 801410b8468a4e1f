"""A file that is only appended to: each piece is written as a whole or not at all, and waits while the disk is full."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ponder import full_disk, signals
from ponder.atomic_write import fsync_path

_CHUNK_BYTES = 1 << 16


class AppendFile:
    """`is_new_file`: its name may not be on the disk yet. `stopped`: whether to raise instead of waiting any longer for
    space on the disk."""

    def __init__(self, path: Path, is_new_file: bool, stopped: Callable[[], bool] = signals.stop_requested) -> None:
        self.path, self._is_new_file, self._stopped = path, is_new_file, stopped
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._synced = 0  # bytes that are known to be on the disk

    def append(self, data: bytes) -> None:
        full_disk.retry_while_disk_full(lambda: self._write(data), self.path, len(data), self._stopped)

    def _write(self, data: bytes) -> None:
        start = self._file.seek(0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except BaseException:
            with contextlib.suppress(OSError):  # readers ignore a part of a record; the next writer removes it
                self._file.truncate(start)
            raise

    def sync(self) -> None:
        """Write the file through to the disk, and the name of a new file too."""
        end, again = self._file.seek(0, os.SEEK_END), False

        def flush() -> None:
            nonlocal again
            if again:  # some systems notice a full disk late, and then take the bytes for written
                rewrite_bytes(self.path, self._synced, end)
            again = True
            os.fsync(self._file.fileno())

        full_disk.retry_while_disk_full(flush, self.path, end - self._synced, self._stopped)
        self._synced = end
        if self._is_new_file:
            fsync_path(self.path.parent)
            self._is_new_file = False

    def close(self) -> None:
        self._file.close()


def rewrite_bytes(path: Path, start: int, end: int) -> None:
    """The same bytes in the same place."""
    with open(path, "r+b", buffering=0) as file:
        for at in range(start, end, _CHUNK_BYTES):
            file.seek(at)
            part = file.read(min(_CHUNK_BYTES, end - at))
            file.seek(at)
            file.write(part)
