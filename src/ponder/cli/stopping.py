"""Ctrl-C, SIGTERM, SIGHUP: the first one lets the job save and stop, the second ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

from ponder import signals
from ponder.cli.watchman import Watchman
from ponder.errors import Interrupted
from ponder.foreign import Call

AGAIN = "(again to quit at once)"

_last = 0  # the signal that was heard last


def code() -> int:
    """The exit code of a command that was stopped; 0: none was."""
    return 128 + _last if _last else 0


class Stop:
    """A context in which stop signals ask the job to stop. `saves`: it is one that goes on when run again.

    A job looks at `check` between two pieces of work. One that does not come to it, since a reward function hangs or
    a list is long, is broken off by an `Interrupted` in the main thread (see watchman.py).
    """

    def __init__(self, saves: bool = True) -> None:
        self.asked = 0
        self.number = 0
        self.when = 0.0
        self.saves = saves
        self.quiet = False  # a live panel tells the user instead
        self.heeded = False  # somebody was told to stop
        self.critical = False  # learning or saving: never broken off in the middle
        self.breaking: Call | bool = False  # the next signal is the watchman's, who breaks off this call, or whatever
        self._before: dict[int, Any] = {}
        self._watchman = Watchman(self)

    def __enter__(self) -> Stop:
        self._before = signals.install(self._heard)
        signals.heed(self._requested)
        self._watchman.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._watchman.leave()
        signals.unheed(self._requested)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Called between two pieces of work, from any thread."""
        if self.asked:
            self.heeded = True
            raise self._interrupted()

    def _requested(self) -> bool:
        return self.asked > 0

    @property
    def message(self) -> str:
        return f"stopping: saving ... {AGAIN}" if self.saves else f"stopping ... {AGAIN}"

    def _interrupted(self) -> Interrupted:
        more = "; what was done is saved, and the same command goes on" if self.saves else ""
        return Interrupted(f"stopped{more}")

    def _heard(self, number: int, frame: FrameType | None) -> None:
        global _last
        if self.breaking:
            self._break()
            return
        self.asked += 1
        self.number = _last = number
        if self.asked > 1:
            signals.end(number)
        self.when = time.monotonic()
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        if not self.quiet:
            signals.write(2, f"\n{self.message}\n")

    def _break(self) -> None:
        """Raise into what the main thread does, if that is still what was to be broken off."""
        what, self.breaking = self.breaking, False
        if isinstance(what, Call):
            if what.alive and what.blocks:
                raise self._interrupted()
            return
        if self.heeded or self.critical:
            return
        self.heeded = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise self._interrupted() from None
        if asyncio.current_task(loop) is not None:
            raise self._interrupted()
        for task in asyncio.all_tasks(loop):  # it waits for something; raised here, it would end in asyncio's log
            loop.call_soon_threadsafe(task.cancel)


def _leave_terminal() -> None:
    """It is gone, and writing to it would fail in the middle of the work."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if os.isatty(stream):
            os.dup2(null, stream)
