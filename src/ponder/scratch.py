"""Folders in which something is written before it is put in its place. Whoever ends the process early sweeps them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_open: dict[Path, Path] = {}  # work folder: what it is for


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A private folder on the disk of `target`, gone afterwards. What is moved to `old` in it is `target` as it was,
    and returns to its place where nothing new has taken that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    _open[work] = target
    try:
        yield work
    finally:
        _clear(work, target)
        _open.pop(work, None)


def remove_all() -> None:
    """Remove all that are open, on the way out."""
    for work, target in list(_open.items()):
        with suppress(OSError):  # nobody is left to tell
            _clear(work, target)


def _clear(work: Path, target: Path) -> None:
    if (work / "old").exists() and not os.path.lexists(target):
        (work / "old").rename(target)
    shutil.rmtree(work, ignore_errors=True)
