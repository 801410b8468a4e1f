"""The folder in which ponder caches what it can compute again: converted models, fingerprints of large files."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$PONDER_CACHE, else ponder/ in the user's cache folder."""
    if given := os.environ.get("PONDER_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ponder"
