"""uvicorn's server with another end: the first signal lets running requests finish while new ones get an answer too,
the second one ends them."""

from __future__ import annotations

import asyncio
import math
import socket
from types import FrameType
from typing import Any

import uvicorn

from ponder.serve.running_requests import RunningRequests
from ponder.serve.service import Service

_LAST_SECONDS = 5.0  # that clients have at least to read the ends of their replies
_CANCEL_SECONDS = 5  # after which uvicorn cancels what does not end though its connection is gone


class DrainingServer(uvicorn.Server):  # type: ignore[misc]
    """Listens until the running requests have finished or the drain time has passed, so that load balancers can ask
    for its health. What then still runs ends with an error, unless its client stopped reading."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._num_signals = 0
        self._drain_until = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None  # while the server shuts down

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's own would raise the signal again at the end, before the traces are written."""
        self._num_signals += 1
        self.service.running.draining = True
        if self._num_signals > 1:
            self.should_exit = True
            if self._loop is not None:
                self.force_exit = True
                self._loop.call_soon_threadsafe(self._abort_connections)

    async def on_tick(self, counter: int) -> bool:
        """Whether to shut down. uvicorn asks ten times in a second."""
        if await super().on_tick(counter):
            return True
        if not self._num_signals:
            return False
        now = asyncio.get_running_loop().time()
        if self._drain_until == math.inf:
            self._drain_until = now + self.service.limits.drain_seconds
        return not len(self.service.running) or now >= self._drain_until

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what runs, listen no more, and close the connections once their replies are sent."""
        self._loop = asyncio.get_running_loop()
        seconds = _LAST_SECONDS
        if not self.should_exit:  # nothing runs, and large replies may take their time
            left = min(self.service.limits.stall_seconds, self._drain_until - self._loop.time())
            seconds = max(seconds, left)
        self.service.running.stop_all()
        self.config.timeout_graceful_shutdown = math.ceil(seconds) + _CANCEL_SECONDS
        abort = self._loop.call_later(seconds, self._abort_connections)
        try:
            await super().shutdown(sockets)
        finally:
            abort.cancel()

    def _abort_connections(self) -> None:
        """A reply whose connection is gone ends by itself."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def without_cancelled(app: Any, running: RunningRequests) -> Any:
    """The same ASGI application. A reply that is cancelled because the server ends is no failure of the application,
    for which uvicorn would print a traceback."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not running.is_stopped:
                raise

    return run
