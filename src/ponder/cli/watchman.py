"""A thread beside a job: says whose code takes long, and breaks off what does not heed a stop."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from ponder import foreign, signals
from ponder.foreign import Call

if TYPE_CHECKING:
    from ponder.cli.stopping import Stop

TICK = 0.25  # seconds between two looks
LONG = 10.0  # seconds after which a call that blocks all others is told of; then after three times as many
WAITING = 30.0  # seconds after which one is told of that waits for something
HEED = 1.0  # seconds that a call of foreign code has to end after a stop
UNHEARD = 3.0  # seconds that our own code has to come to its next check
DEADLINE = 10.0  # seconds after which a call that cannot be broken off ends the process


class Watchman:
    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watchman", daemon=True)
        self._blocked: dict[Call, float] = {}  # calls that block their event loop, and since when
        self._told: dict[str, float] = {}  # names of calls that were told of, with the seconds for the next time

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        foreign.close(False)

    def _work(self) -> None:
        while not self._over.wait(TICK):
            calls, now = foreign.running(), time.monotonic()
            self._blocked = {c: self._blocked.get(c, now) for c in calls if c.blocks}
            self._tell(calls, now)
            if self.stop.asked:
                self._hurry(calls, now - self.stop.when)

    def _tell(self, calls: list[Call], now: float) -> None:
        """Who holds up the others, and for how long."""
        spent: dict[str, tuple[float, float]] = {}  # by name: seconds of the longest call, and how many are many
        for call in calls:
            if call in self._blocked:
                spent[call.name] = max(spent.get(call.name, (0.0, 0.0)), (now - self._blocked[call], LONG))
            elif call.users:
                spent[call.name] = max(spent.get(call.name, (0.0, 0.0)), (now - call.began, WAITING))
        self._told = {name: due for name, due in self._told.items() if name in spent}
        for name, (seconds, many) in spent.items():
            if seconds >= self._told.get(name, many):
                self._told[name] = 3 * seconds
                with contextlib.suppress(OSError, ValueError):
                    print(f"  ! {name} has been running for {seconds:.0f} s", file=sys.stderr, flush=True)

    def _hurry(self, calls: list[Call], since: float) -> None:
        if since > HEED:
            foreign.close()
            for call in calls:
                if call not in self._blocked:
                    call.cancel()
                elif call.thread == threading.main_thread().ident:
                    self._break(call)
            if since > DEADLINE and (stuck := [c.name for c in self._blocked]):
                why = f"stopped at once: {stuck[0]} does not end; the last checkpoint stands"
                signals.end(self.stop.number, said=why if self.stop.saves else f"stopped: {stuck[0]} does not end")
        if since > UNHEARD and not calls and not self.stop.heeded and not self.stop.critical:
            self._break(True)

    def _break(self, what: Call | bool) -> None:
        """A signal of our own interrupts what the main thread waits for; the handler there raises."""
        self.stop.breaking = what
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, self.stop.number)
