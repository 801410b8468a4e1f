"""Folders in which something is written before it is put in its place. Whoever ends the process early sweeps them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_active_folders: dict[Path, Path] = {}  # work folder: what it is for


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A private folder on the disk of `target`, gone afterwards. What is moved to `old` in it is `target` as it was,
    and returns to its place where nothing new has taken that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    _active_folders[work] = target
    try:
        yield work
    finally:
        _remove_and_restore(work, target)
        _active_folders.pop(work, None)


def remove_all() -> None:
    """Remove all that are open, on the way out."""
    for work, target in list(_active_folders.items()):
        with suppress(OSError):  # nobody is left to tell
            _remove_and_restore(work, target)


def _remove_and_restore(work: Path, target: Path) -> None:
    if (work / "old").exists() and not os.path.lexists(target):
        (work / "old").rename(target)
    shutil.rmtree(work, ignore_errors=True)
