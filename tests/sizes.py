"""How much a test does: enough to find a fault on every change, more of the same in `make nightly`."""

from __future__ import annotations

import os

NIGHTLY = bool(os.environ.get("PONDER_FUZZ"))  # which `make nightly` sets


def size(every_change: int, nightly: int) -> int:
    return nightly if NIGHTLY else every_change
