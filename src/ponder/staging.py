"""Staging folders: files are written there, then renamed into place. A process that ends early removes them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_active_folders: dict[Path, Path] = {}  # staging folder: its target


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A temporary folder on the same disk as `target`. If the old target was moved to `old` in it and nothing replaced
    it, the old target is moved back."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    _active_folders[work] = target
    try:
        yield work
    finally:
        _remove_and_restore(work, target)
        _active_folders.pop(work, None)


def remove_all() -> None:
    """Remove all active staging folders, before the process ends."""
    for work, target in list(_active_folders.items()):
        with suppress(OSError):  # the process ends: nothing could handle the error
            _remove_and_restore(work, target)


def _remove_and_restore(work: Path, target: Path) -> None:
    if (work / "old").exists() and not os.path.lexists(target):
        (work / "old").rename(target)
    shutil.rmtree(work, ignore_errors=True)
