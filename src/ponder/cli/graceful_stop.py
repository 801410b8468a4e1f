"""Ctrl-C, SIGTERM, SIGHUP: the first one lets the job save and stop, the second ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

from ponder import signals
from ponder.cli.watchdog import Watchdog
from ponder.errors import Interrupted
from ponder.user_calls import UserCall

SECOND_SIGNAL_HINT = "(again to quit at once)"

_last_signal = 0  # the last signal that arrived


def signal_exit_code() -> int:
    """The exit code of a command that was stopped; 0: none was."""
    return 128 + _last_signal if _last_signal else 0


class GracefulStop:
    """A context in which stop signals ask the job to stop. `resumable`: the same command resumes it.

    A job looks at `check` between two pieces of work. One that does not come to it, since a reward function hangs or
    a list is long, is broken off by an `Interrupted` in the main thread (see watchdog.py).
    """

    def __init__(self, resumable: bool = True) -> None:
        self.signal_count = 0
        self.signal_number = 0
        self.requested_at = 0.0
        self.resumable = resumable
        self.quiet = False  # a live panel shows it instead
        self.acknowledged = False  # the job was asked to stop
        self.critical = False  # learning or saving: never broken off in the middle
        # the watchdog handles the next signal: it interrupts this call, or whatever
        self.interrupting: UserCall | bool = False
        self._previous_handlers: dict[int, Any] = {}
        self._watchdog = Watchdog(self)

    def __enter__(self) -> GracefulStop:
        self._previous_handlers = signals.install(self._on_signal)
        signals.add_stop_check(self._is_requested)
        self._watchdog.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._watchdog.close()
        signals.remove_stop_check(self._is_requested)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise if a stop was requested. Jobs call this between two pieces of work, from any thread."""
        if self.signal_count:
            self.acknowledged = True
            raise self._interrupted()

    def _is_requested(self) -> bool:
        return self.signal_count > 0

    @property
    def message(self) -> str:
        return f"stopping: saving ... {SECOND_SIGNAL_HINT}" if self.resumable else f"stopping ... {SECOND_SIGNAL_HINT}"

    def _interrupted(self) -> Interrupted:
        more = "; what was done is saved, and the same command goes on" if self.resumable else ""
        return Interrupted(f"stopped{more}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        global _last_signal
        if self.interrupting:
            self._interrupt()
            return
        self.signal_count += 1
        self.signal_number = _last_signal = number
        if self.signal_count > 1:
            signals.exit_on_signal(number)
        self.requested_at = time.monotonic()
        if number == getattr(signal, "SIGHUP", None):
            _detach_terminal()
        if not self.quiet:
            signals.write_fd(2, f"\n{self.message}\n")

    def _interrupt(self) -> None:
        """Raise into what the main thread does, if that is still what was to be broken off."""
        interrupting, self.interrupting = self.interrupting, False
        if isinstance(interrupting, UserCall):
            if interrupting.alive and interrupting.blocks_event_loop:
                raise self._interrupted()
            return
        if self.acknowledged or self.critical:
            return
        self.acknowledged = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise self._interrupted() from None
        if asyncio.current_task(loop) is not None:
            raise self._interrupted()
        for task in asyncio.all_tasks(loop):  # it waits for something; raised here, it would end in asyncio's log
            loop.call_soon_threadsafe(task.cancel)


def _detach_terminal() -> None:
    """It is gone, and writing to it would fail in the middle of the work."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if os.isatty(stream):
            os.dup2(null, stream)
