"""`EventQueue`: from the callbacks that sample to the one task that writes a reply."""

from __future__ import annotations

import asyncio
from collections import deque

from ponder.serve.events import Event


class EventQueue:
    """Iterate to get the events; the iteration ends after `close`. As `asyncio.Queue`, with one reader and no bound: it
    is woken once for all events that were put since it last looked."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._is_closed = False
        self._reader: asyncio.Future[None] | None = None  # that waits

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def close(self, *_: object) -> None:
        """No more events come."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def __aiter__(self) -> EventQueue:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._events.popleft()
