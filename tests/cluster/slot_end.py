"""Wait for the process in a slot."""

from __future__ import annotations

import time

from ponder.cluster.places import Slot

SECONDS = 120.0  # far above what any of these takes, on a busy machine


def wait_for_end(slot: Slot) -> tuple[int, bytes, bytes]:
    """Its exit code, and what it wrote to standard output and error."""
    out, err, deadline = b"", b"", time.monotonic() + SECONDS
    while True:
        code = slot.poll()
        more = slot.read_output()
        out, err = out + more[0], err + more[1]
        if code is not None:
            return code, out, err
        assert time.monotonic() < deadline
        time.sleep(0.02)
