"""Open files of a run directory that may come from a stranger: plain files only, and no link is followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ponder.errors import RunError

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a named pipe would wait for a writer
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def open_plain(path: Path) -> Iterator[IO[bytes]]:
    """The file opened for reading. FileNotFoundError where there is none; RunError where it is no plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_WAIT | _NO_LINK)
    except FileNotFoundError:
        raise
    except OSError as why:
        raise RunError(f"{path.name} of this run cannot be read: {why.strerror}") from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RunError(f"{path.name} of this run is no plain file, so it is not read")
        yield file


def file_size(path: Path) -> int:
    """0 where there is no such plain file."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
