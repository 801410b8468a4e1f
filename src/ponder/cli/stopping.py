"""Ctrl-C: the first one lets the job save and stop, the second stops at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from ponder.errors import Interrupted

AGAIN = "(again to quit at once)"


class Stop:
    """A context in which SIGINT and SIGTERM ask the job to stop. `saves`: it is one that goes on when run again."""

    def __init__(self, saves: bool = True) -> None:
        self.asked = 0
        self.saves = saves
        self.quiet = False  # a live panel tells the user instead
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Called between two pieces of work, from any thread."""
        if self.asked:
            more = "; what was done is saved, and the same command goes on" if self.saves else ""
            raise Interrupted(f"stopped{more}")

    @property
    def message(self) -> str:
        return f"stopping: saving ... {AGAIN}" if self.saves else f"stopping ... {AGAIN}"

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        if self.asked == 1:
            if not self.quiet:
                os.write(2, f"\n{self.message}\n".encode())  # print() may be at work in the interrupted frame
        elif self.asked == 2:
            raise KeyboardInterrupt
        else:  # a thread that does not come back would be waited for
            os._exit(130)
