"""ponder reads and writes a run directory only inside itself: no link in it leads elsewhere.

Otherwise a run directory from a stranger could make ponder read or change a file outside of it: a run that resumes
would append to the file at home that a link named `metrics.jsonl` leads to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ponder.errors import RunError


def refuse_symlinks(folder: str | Path) -> None:
    """Raise if anything below this folder is a link, or neither a file nor a folder. The folder itself may be a link:
    the user gave that path."""
    for entry in _walk(str(folder)):
        if entry.is_symlink():
            fault = "is a symbolic link"
        elif not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
            fault = "is neither a file nor a folder"
        else:
            continue
        raise RunError(
            f"{entry.path} {fault}, and nothing outside a run directory is read or written: replace it by a copy, or "
            "remove it"
        )


def _walk(folder: str) -> Iterator[os.DirEntry[str]]:
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError):  # not there, or gone since: a checkpoint that is being renamed
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
