"""Report calls of the user's code that take long: `reward mine.py:slow has been running for 12 s`."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from ponder import user_calls
from ponder.user_calls import UserCall

# A call that blocks all others is reported after so many seconds; then after three times as many.
SLOW_BLOCKING_SECONDS = 10.0
SLOW_WAITING_SECONDS = 30.0  # a call that waits for something is reported after so many seconds
POLL_SECONDS = 0.25


class SlowCalls:
    """Which calls block their event loop and since when, and which of them were reported."""

    def __init__(self) -> None:
        self.blocked_since: dict[UserCall, float] = {}
        self._next_report_at: dict[str, float] = {}  # by name of the call: seconds at which to report it again

    def report(self, calls: list[UserCall], now: float) -> None:
        """Report the calls that hold up the others, and for how long."""
        self.blocked_since = {c: self.blocked_since.get(c, now) for c in calls if c.blocks_event_loop}
        spent: dict[str, tuple[float, float]] = {}  # by name: seconds of the longest call, and how many are many
        for call in calls:
            if call in self.blocked_since:
                blocked = (now - self.blocked_since[call], SLOW_BLOCKING_SECONDS)
                spent[call.name] = max(spent.get(call.name, (0.0, 0.0)), blocked)
            elif call.is_user_code:
                spent[call.name] = max(spent.get(call.name, (0.0, 0.0)), (now - call.started_at, SLOW_WAITING_SECONDS))
        self._next_report_at = {name: due for name, due in self._next_report_at.items() if name in spent}
        for name, (seconds, many) in spent.items():
            if seconds >= self._next_report_at.get(name, many):
                self._next_report_at[name] = 3 * seconds
                with contextlib.suppress(OSError, ValueError):
                    print(f"  ! {name} has been running for {seconds:.0f} s", file=sys.stderr, flush=True)


@contextlib.contextmanager
def report_slow_calls() -> Iterator[None]:
    """Report slow calls from a thread of its own for as long as this block lasts."""
    closed, slow_calls = threading.Event(), SlowCalls()

    def poll() -> None:
        while not closed.wait(POLL_SECONDS):
            slow_calls.report(user_calls.running_calls(), time.monotonic())

    thread = threading.Thread(target=poll, name="slow calls", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()
