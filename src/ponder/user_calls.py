"""Tracks running calls of the user's code: reward functions and verifiers, which may hang.

The watchdog (cli/watchdog.py) reports a call that takes long, and cancels one that delays a stop.
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
    name: str  # for messages: "reward mine:slow"
    sync: bool  # a synchronous call: it blocks its thread until it returns
    is_user_code: bool  # the user's own code: nothing of ponder makes it wait
    task: asyncio.Task[object] | None  # in which it runs
    loop: asyncio.AbstractEventLoop | None
    thread: int = field(default_factory=threading.get_ident)
    started_at: float = field(default_factory=time.monotonic)
    cancelled: bool = False  # its task was cancelled because the user wants to stop

    @property
    def blocks_event_loop(self) -> bool:
        """Whether it is computing now, so that nothing else in its event loop can run."""
        return self.sync or (self.loop is not None and asyncio.current_task(self.loop) is self.task)

    @property
    def alive(self) -> bool:
        return self in _calls.values()

    def cancel(self) -> None:
        """Raise `Interrupted` where the call waits. May be called from any thread."""

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
    """Refuse new calls: the user wants to stop, and each of them might hang as well."""
    global _closed
    _closed = closed


def running_calls() -> list[UserCall]:
    """The innermost call of each task and thread."""
    return list({(c.thread, id(c.task)): c for c in list(_calls.values())}.values())


@contextmanager
def track(name: str, sync: bool = False, is_user_code: bool = False) -> Iterator[None]:
    """Track a synchronous call (`sync`), or what is awaited within this block."""
    if _closed:
        raise Interrupted("stopped")
    task, loop = None, None
    try:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
    except RuntimeError:  # no event loop: a synchronous call
        sync = True
    call = UserCall(name, sync, is_user_code, task, loop)
    number = next(_numbers)
    _calls[number] = call
    try:
        yield
    except asyncio.CancelledError:
        if not call.cancelled or task is None:
            raise
        task.uncancel()
        raise Interrupted("stopped") from None
    finally:
        del _calls[number]
