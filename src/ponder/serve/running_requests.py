"""The requests that run now: how many there may be, and how each is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ponder.serve.errors import not_found, overloaded, unavailable


@dataclass(eq=False)
class Control:
    """What a client can do to a running request."""

    end_thinking: asyncio.Event = field(default_factory=asyncio.Event)  # answer now
    on_cancel: Callable[[], None] | None = None  # of the reasoner, while it samples
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()


@dataclass(eq=False)
class RunningRequest:
    id: str
    owner: str  # the key that it came with; nobody else can end it
    task: asyncio.Task[Any] | None  # that works on it
    control: Control = field(default_factory=Control)
    is_stopped: bool = False

    def stop(self) -> None:
        """End it with an error."""
        self.is_stopped = True
        if self.task is not None:
            self.task.cancel()


class RunningRequests:
    """`draining`: the server is stopping and takes no new request. `is_stopped`: those that ran were ended."""

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent, self.draining, self.is_stopped = max_concurrent, False, False
        self._by_id: dict[str, RunningRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def ids(self) -> list[str]:
        return list(self._by_id)

    @contextmanager
    def admit(self, request_id: str, owner: str = "") -> Iterator[RunningRequest]:
        """Within this block the request runs. The block raises an error for the client where `stop_all` ends it."""
        if self.draining:
            raise unavailable("the server is stopping: send the request to another, or later")
        if len(self._by_id) >= self.max_concurrent:
            raise overloaded(f"{self.max_concurrent} requests are running, which is all that this server allows")
        running = self._by_id[request_id] = RunningRequest(request_id, owner, asyncio.current_task())
        try:
            yield running
        except asyncio.CancelledError:
            if running.is_stopped and running.task is not None and not running.task.uncancel():
                raise unavailable("the server stopped before this answer was complete") from None
            raise
        finally:
            del self._by_id[request_id]

    def find(self, request_id: str, owner: str = "") -> RunningRequest:
        running = self._by_id.get(request_id)
        if running is None or running.owner != owner:
            raise not_found(f"no request {request_id[:100]!r} is running", "request_not_found", "id")
        return running

    def stop_all(self) -> None:
        """End every request, with an error that says that the server stopped."""
        self.draining = self.is_stopped = True
        for running in self._by_id.values():
            running.stop()
