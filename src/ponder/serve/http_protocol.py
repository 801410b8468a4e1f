"""uvicorn's HTTP protocol with bounds on what a connection may take: time to send a request, time to read a reply, and
a place among the open connections.

uvicorn waits without end for the head of a request, for the rest of a body that nobody reads, and for a client that
does not read. Each of these is a way to use up a server's connections from one machine.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ponder.serve.errors import invalid
from ponder.serve.limits import Limits

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

# The rest of an unwanted body is thrown away for so long, so that the client can read the reply.
_LINGER_SECONDS, _LINGER_BYTES = 2.0, 8 << 20
_SPARE_FILES = 200  # descriptors that are not connections
_MAX_HEAD_BYTES = 1 << 16


def bounded_protocol(limits: Limits) -> type[Any]:
    """The class of connections, with these limits: over httptools where it is installed, which is written in C, else
    over h11."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

    most = limits.max_connections
    if resource is not None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(most, max(16, files - _SPARE_FILES))
    settings = {"max_connections": most, "limits": limits, "idle": {}}
    return type("BoundedProtocol", (BoundedConnection, Protocol), settings)


def raise_file_limit(limits: Limits) -> None:
    """Allow this process as many descriptors as it may have connections, where the system lets it."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + _SPARE_FILES
    if soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class BoundedConnection:
    """A mixin before one of uvicorn's protocols. A connection is idle while no request of it is being answered."""

    limits: Limits
    max_connections: int
    idle: dict[BoundedConnection, None]  # of all connections, those that have been idle for the longest time first
    # of uvicorn's protocol
    transport: Any
    cycle: Any
    loop: asyncio.AbstractEventLoop
    connections: set[Any]

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _lingers, _thrown_away = False, 0
    _head_bytes = 0  # in a row that neither began a request nor belonged to a body
    _is_pipelined = False  # a request came before the reply to the last one was complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.idle[self] = None
        self._await_head()
        if len(self.connections) > self.max_connections:  # close the idlest: this one, if all others are busy
            idlest = next(iter(self.idle))
            del self.idle[idlest]
            self.connections.discard(idlest)
            idlest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._cancel_timers()
        super().connection_lost(exc)  # type: ignore[misc]

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            self._thrown_away += len(data)
            if self._thrown_away > _LINGER_BYTES:
                self.transport.abort()
            return
        if self._is_pipelined:
            return
        before, size = self.cycle, 0 if self.cycle is None else len(self.cycle.body)
        super().data_received(data)  # type: ignore[misc]
        is_progress = self.cycle is not before or (before is not None and len(before.body) > size)
        self._head_bytes = 0 if is_progress else self._head_bytes + len(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self._is_pipelined:
            self.send_400_response("")
            return
        if not self.is_idle:
            self.idle.pop(self, None)
            self._head_timer = _cancel(self._head_timer)
        elif self._head_timer is None:
            self._await_head()

    # httptools calls these while it parses. A second request on a connection waits for the reply to the first in
    # uvicorn's queue, where a client that goes away is not noticed; so it is not read, and the connection is closed
    # after the first reply, as HTTP allows.

    def on_message_begin(self) -> None:
        if not self.is_idle:
            self._is_pipelined, self.cycle.keep_alive = True, False
        super().on_message_begin()  # type: ignore[misc]

    def on_headers_complete(self) -> None:
        if not self._is_pipelined:
            super().on_headers_complete()  # type: ignore[misc]

    def on_body(self, body: bytes) -> None:
        if not self._is_pipelined:
            super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        if not self._is_pipelined:
            super().on_message_complete()  # type: ignore[misc]

    def on_response_complete(self) -> None:
        if self in self.connections:
            self.idle[self] = None
        unread = self.cycle is not None and self.cycle.more_body
        super().on_response_complete()  # type: ignore[misc]
        if unread and not self.transport.is_closing():
            self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stall_timer = _cancel(self._stall_timer)
        super().resume_writing()  # type: ignore[misc]

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets an error in the same shape as everything else."""
        body = invalid("this is not an HTTP request that the server can read").body()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self._give_up_head)

    def _give_up_head(self) -> None:
        self._head_timer = None
        if self.is_idle:
            self.transport.abort()

    def _linger(self) -> None:
        """The reply is out, but the client still sends. Closing now would reset the connection under the reply."""
        self._lingers = True
        self._head_timer = _cancel(self._head_timer)
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:  # the client has reset the connection
            self.transport.abort()
            return
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _cancel_timers(self) -> None:
        self._head_timer, self._stall_timer = _cancel(self._head_timer), _cancel(self._stall_timer)


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
