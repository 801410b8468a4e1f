"""A thread beside a job that names user code which takes long, and interrupts calls that ignore a stop."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from ponder import signals, user_calls
from ponder.pipelines.job.slow_calls import SlowCalls
from ponder.user_calls import UserCall

if TYPE_CHECKING:
    from ponder.cli.graceful_stop import GracefulStop

POLL_SECONDS = 0.25  # seconds between two checks
FOREIGN_CODE_GRACE_SECONDS = 1.0  # seconds that user code has to end after a stop
OWN_CODE_GRACE_SECONDS = 3.0  # seconds that ponder's code has to reach its next check
KILL_AFTER_SECONDS = 10.0  # a call that cannot be interrupted ends the process after so many seconds


class Watchdog:
    def __init__(self, stop: GracefulStop) -> None:
        self.stop = stop
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watchdog", daemon=True)
        self._slow_calls = SlowCalls()

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
            self._slow_calls.report(calls, now)
            if self.stop.signal_count:
                self._enforce_stop(calls, now - self.stop.requested_at)

    def _enforce_stop(self, calls: list[UserCall], since: float) -> None:
        if since > FOREIGN_CODE_GRACE_SECONDS:
            user_calls.refuse_new_calls()
            for call in calls:
                if call not in self._slow_calls.blocked_since:
                    call.cancel()
                elif call.thread == threading.main_thread().ident:
                    self._interrupt_main_thread(call)
            if since > KILL_AFTER_SECONDS and (stuck := [c.name for c in self._slow_calls.blocked_since]):
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
