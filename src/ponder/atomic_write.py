"""Atomic writes of small files: a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY_SUFFIX = ".new"


def write_atomically(path: Path, text: str, sync: bool = False, suffix: str = TEMPORARY_SUFFIX) -> None:
    """Write the text beside `path`, then rename it into place.

    `sync`: it is on the disk when this returns. `suffix` ends the name of the temporary file; processes that may write
    the same file at the same time need one each.
    """
    write_bytes_atomically(path, text.encode("utf-8"), sync, suffix)


def write_bytes_atomically(path: Path, data: bytes, sync: bool = False, suffix: str = TEMPORARY_SUFFIX) -> None:
    """The same for bytes."""
    temporary = path.with_name(path.name + suffix)
    with open(temporary, "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if sync:
        fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Write a file's bytes, or a folder's entries, through to the disk. Windows cannot open a folder and needs not."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
