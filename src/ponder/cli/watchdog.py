"""A thread beside a job that names user code which takes long, and interrupts calls that ignore a stop."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from ponder import signals, user_calls
from ponder.user_calls import UserCall

if TYPE_CHECKING:
    from ponder.cli.graceful_stop import GracefulStop

POLL_SECONDS = 0.25  # seconds between two checks
# a call that blocks all others is reported after so many seconds; then after three times as many
SLOW_BLOCKING_SECONDS = 10.0
SLOW_WAITING_SECONDS = 30.0  # a call that waits for something is reported after so many seconds
FOREIGN_CODE_GRACE_SECONDS = 1.0  # seconds that user code has to end after a stop
OWN_CODE_GRACE_SECONDS = 3.0  # seconds that ponder's code has to reach its next check
KILL_AFTER_SECONDS = 10.0  # a call that cannot be interrupted ends the process after so many seconds


class Watchdog:
    def __init__(self, stop: GracefulStop) -> None:
        self.stop = stop
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watchdog", daemon=True)
        self._blocked_since: dict[UserCall, float] = {}  # calls that block their event loop, and since when
        self._next_report_at: dict[
            str, float
        ] = {}  # names of calls that were told of, with the seconds for the next time

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        user_calls.refuse_new_calls(False)

    def _loop(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            calls, now = user_calls.running_calls(), time.monotonic()
            self._blocked_since = {c: self._blocked_since.get(c, now) for c in calls if c.blocks_event_loop}
            self._report_slow_calls(calls, now)
            if self.stop.signal_count:
                self._enforce_stop(calls, now - self.stop.requested_at)

    def _report_slow_calls(self, calls: list[UserCall], now: float) -> None:
        """Report the calls that hold up the others, and for how long."""
        spent: dict[str, tuple[float, float]] = {}  # by name: seconds of the longest call, and how many are many
        for call in calls:
            if call in self._blocked_since:
                spent[call.name] = max(
                    spent.get(call.name, (0.0, 0.0)), (now - self._blocked_since[call], SLOW_BLOCKING_SECONDS)
                )
            elif call.is_user_code:
                spent[call.name] = max(spent.get(call.name, (0.0, 0.0)), (now - call.started_at, SLOW_WAITING_SECONDS))
        self._next_report_at = {name: due for name, due in self._next_report_at.items() if name in spent}
        for name, (seconds, many) in spent.items():
            if seconds >= self._next_report_at.get(name, many):
                self._next_report_at[name] = 3 * seconds
                with contextlib.suppress(OSError, ValueError):
                    print(f"  ! {name} has been running for {seconds:.0f} s", file=sys.stderr, flush=True)

    def _enforce_stop(self, calls: list[UserCall], since: float) -> None:
        if since > FOREIGN_CODE_GRACE_SECONDS:
            user_calls.refuse_new_calls()
            for call in calls:
                if call not in self._blocked_since:
                    call.cancel()
                elif call.thread == threading.main_thread().ident:
                    self._interrupt_main_thread(call)
            if since > KILL_AFTER_SECONDS and (stuck := [c.name for c in self._blocked_since]):
                why = f"stopped at once: {stuck[0]} does not end; the last checkpoint stands"
                signals.exit_on_signal(
                    self.stop.signal_number, message=why if self.stop.resumable else f"stopped: {stuck[0]} does not end"
                )
        if since > OWN_CODE_GRACE_SECONDS and not calls and not self.stop.acknowledged and not self.stop.critical:
            self._interrupt_main_thread(True)

    def _interrupt_main_thread(self, what: UserCall | bool) -> None:
        """A signal of our own interrupts what the main thread waits for; the handler there raises."""
        self.stop.interrupting = what
        ident = threading.main_thread().ident
        if ident is not None and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(ident, self.stop.signal_number)
        else:  # Windows: the handler runs when the main thread goes on
            signal.raise_signal(self.stop.signal_number)
