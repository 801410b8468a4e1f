"""How much a test does: enough to find a fault on every change, more of the same in `make nightly`."""

from __future__ import annotations

import os


def size(every_change: int, nightly: int) -> int:
    """`make nightly` sets PONDER_FUZZ."""
    return nightly if os.environ.get("PONDER_FUZZ") else every_change
