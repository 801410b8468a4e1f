"""Open connections to one server, kept for the next call: a call then needs no handshake."""

from __future__ import annotations

import http.client
import select
import ssl
import threading
import time
import weakref
from contextlib import suppress

CONNECT_SECONDS = 10.0  # until a connection is open
MAX_IDLE_SECONDS = 4.0  # before a connection is used again; usual servers close theirs after 5 s or later
_DRAIN_BYTES, _DRAIN_SECONDS = 1 << 10, 0.2  # of a reply after its last event: the end of a chunked body
_STALE_ERRORS = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class ConnectionPool:
    """At most `size` idle connections. One that the server has closed, or that has unwanted bytes, is dropped."""

    def __init__(self, host: str, port: int | None, tls: ssl.SSLContext | None, size: int) -> None:
        self._host, self._port, self._tls, self._size = host, port, tls, size
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []  # the one that was used last is at the end
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def take(self) -> http.client.HTTPConnection | None:
        """An idle connection that can be used; None if there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            if time.monotonic() - since < MAX_IDLE_SECONDS and _is_quiet(connection):
                return connection
            connection.close()

    def open(self) -> http.client.HTTPConnection:
        """A new connection, which is yet to be connected."""
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_SECONDS, context=self._tls)

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose reply is over for the next call."""
        with self._lock:
            self._idle.append((connection, time.monotonic()))
            surplus = [self._idle.pop(0)[0] for _ in range(len(self._idle) - self._size)]
        for one in surplus:
            one.close()


def is_stale(reason: BaseException) -> bool:
    """Whether a call on a kept connection failed because the server had closed it: a new connection may do."""
    return isinstance(reason, _STALE_ERRORS)


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Whether there is nothing to read, not even the end."""
    if connection.sock is None:
        return False
    if isinstance(connection.sock, ssl.SSLSocket) and connection.sock.pending():
        return False
    poll = select.poll() if hasattr(select, "poll") else None
    if poll is None:  # Windows
        return not select.select([connection.sock], [], [], 0)[0]
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def is_over(connection: http.client.HTTPConnection, reply: http.client.HTTPResponse) -> bool:
    """Whether the whole reply was read, its end included. After the last event of a stream only that end is left."""
    if reply.will_close or connection.sock is None:
        return False
    with suppress(OSError, ValueError, http.client.HTTPException):
        if reply.length == 0:  # read to its declared end, which the library does not notice by itself
            reply.close()
        connection.sock.settimeout(_DRAIN_SECONDS)
        left = _DRAIN_BYTES
        while not reply.isclosed() and left > 0:
            piece = reply.read1(left)
            left -= len(piece)
            if not piece:
                break
    return reply.isclosed()


def _close_all(idle: list[tuple[http.client.HTTPConnection, float]]) -> None:
    while idle:
        idle.pop()[0].close()
