"""Calls of code that is not ours, while they run: a user's reward functions and verifiers, which may hang.

Whoever looks on (cli/watchdog.py) says which one takes long, and ends one that holds up a stop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ponder.errors import Interrupted


@dataclass(eq=False, slots=True)
class UserCall:
    name: str  # what to call it before the user: "reward mine:slow"
    sync: bool  # a plain call: it holds its thread until it returns
    is_user_code: bool  # the user's own code, which waits only because it wants to
    task: asyncio.Task[object] | None  # in which it runs
    loop: asyncio.AbstractEventLoop | None
    thread: int = field(default_factory=threading.get_ident)
    started_at: float = field(default_factory=time.monotonic)
    cancelled: bool = False  # its task was cancelled because the user wants to stop

    @property
    def blocks_event_loop(self) -> bool:
        """Is it computing, and nothing else in its event loop can?"""
        return self.sync or (self.loop is not None and asyncio.current_task(self.loop) is self.task)

    @property
    def alive(self) -> bool:
        return self in _calls.values()

    def cancel(self) -> None:
        """From any thread: raise `Interrupted` where it waits."""

        def now() -> None:
            if self.task is not None and self.alive and not self.cancelled:
                self.cancelled = True
                self.task.cancel()

        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(now)


_calls: dict[int, UserCall] = {}
_numbers = itertools.count()
_closed = False


def refuse_new_calls(closed: bool = True) -> None:
    """From now on no call begins: the user wants to stop, and each might hang as the last one did."""
    global _closed
    _closed = closed


def running_calls() -> list[UserCall]:
    """The innermost call of each task and thread."""
    return list({(c.thread, id(c.task)): c for c in list(_calls.values())}.values())


@contextmanager
def track(name: str, sync: bool = False, is_user_code: bool = False) -> Iterator[None]:
    """Around a call (`sync`), or around what is awaited."""
    if _closed:
        raise Interrupted("stopped")
    task, loop = None, None
    try:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
    except RuntimeError:  # no event loop: a plain call
        sync = True
    made = UserCall(name, sync, is_user_code, task, loop)
    number = next(_numbers)
    _calls[number] = made
    try:
        yield
    except asyncio.CancelledError:
        if not made.cancelled or task is None:
            raise
        task.uncancel()
        raise Interrupted("stopped") from None
    finally:
        del _calls[number]
