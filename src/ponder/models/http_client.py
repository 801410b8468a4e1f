"""JSON over HTTP for many concurrent calls, with a bounded pool, retries, limits and cancellation.

Each call runs in a thread of the pool with a connection of its own, by the standard library; the next call uses the
connection again. A cancelled call shuts its connection, so that the server stops generating. A timer does the same to a
call that takes too long in total, however often the server sends a little. No more of a reply is read than its
`ReplyLimits` allow.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from ponder.errors import ModelError, PonderError, UsageError
from ponder.models.http_connections import CONNECT_SECONDS, ConnectionPool, is_over, is_stale
from ponder.terminal import escape_controls

T = TypeVar("T")
_MAX_RETRY_WAIT_SECONDS = 30.0  # between two attempts, whatever the server asks for
_RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_READ_BYTES = 1 << 16  # per read
_ERROR_BYTES = 1 << 16  # of the body of an error
_MIN_BODY_BYTES, _MAX_BODY_BYTES = 4 << 20, 256 << 20
_MIN_LINE_BYTES, _MAX_LINE_BYTES = 1 << 20, 64 << 20
_BYTES_PER_TOKEN = 1024  # of a reply, with its event or log-probability
_BYTES_PER_LOGPROB = 256  # of each of its top log-probabilities
_SECONDS_PER_TOKEN = 1.0  # on average; a slower server is given up


@dataclass(frozen=True)
class ReplyLimits:
    """Limits of a reply: bytes of a line, bytes in total, and seconds from the first attempt to the last byte."""

    max_line_bytes: int = _MIN_LINE_BYTES
    max_body_bytes: int = _MIN_BODY_BYTES
    max_seconds: float = 600.0

    @classmethod
    def for_answer(cls, timeout: float, tokens: int = 0, prompt: int = 0, alternatives: int = 0) -> ReplyLimits:
        """Generous limits for an answer of so many tokens: a server may send much for each, and repeat the prompt."""
        size = tokens * (_BYTES_PER_TOKEN + _BYTES_PER_LOGPROB * alternatives) + 64 * prompt
        return cls(
            max_line_bytes=min(_MIN_LINE_BYTES + size // 4, _MAX_LINE_BYTES),
            max_body_bytes=min(_MIN_BODY_BYTES + size, _MAX_BODY_BYTES),
            max_seconds=timeout + tokens * min(timeout, _SECONDS_PER_TOKEN),
        )


class RequestRefused(UsageError):
    """The server refused the request, with this status and message."""

    def __init__(self, status: int, message: str, url: str) -> None:
        super().__init__(f"{url} answered {status}: {message}")
        self.status, self.message = status, message


class _Cancelled(Exception):
    """The caller was cancelled."""


class _Stale(Exception):
    """The server had closed a connection that was kept."""


class _Retryable(Exception):
    """This attempt failed; the next may succeed."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class HttpClient:
    """A server's address. `key` is sent as a bearer token and never shown."""

    def __init__(self, url: str, key: str | None, max_concurrency: int, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is not the address of a server: give one such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise UsageError("a key does not belong in an address, which is saved with runs: set OPENAI_API_KEY")
        if max_concurrency < 1 or retries < 0 or not timeout > 0:
            raise UsageError("max_concurrency must be at least 1, retries at least 0, timeout above 0")
        try:
            port = parts.port
        except ValueError:
            raise UsageError(f"{url!r} has an invalid port: give one such as http://127.0.0.1:8000/v1") from None
        self.url = url.rstrip("/")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.connections = ConnectionPool(parts.hostname, port, tls, max_concurrency)
        self._key, self.timeout, self.retries = key, timeout, retries
        self._pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="http")

    async def post(self, url: str, body: Mapping[str, Any], limits: ReplyLimits | None = None) -> Any:
        limits = limits or self.limits()
        return await self._call(url, body, lambda reply: self._json(_read_body(reply, limits)), limits)

    def request_blocking(
        self, method: str, url: str, body: Mapping[str, Any] | None = None, limits: ReplyLimits | None = None
    ) -> Any:
        """Send a request in the caller's thread, and wait."""
        limits = limits or self.limits()
        return _Call(self, method, url, body, limits).run(lambda reply: self._json(_read_body(reply, limits)))

    async def stream(
        self, url: str, body: Mapping[str, Any], read: Callable[[Iterator[Any]], T], limits: ReplyLimits | None = None
    ) -> T:
        """Call `read`, in a thread, with the events of the reply as they arrive. Then close the reply."""
        limits = limits or self.limits()
        return await self._call(url, body, lambda reply: read(self._events(reply, limits)), limits)

    def limits(self, tokens: int = 0, prompt: int = 0, alternatives: int = 0) -> ReplyLimits:
        return ReplyLimits.for_answer(self.timeout, tokens, prompt, alternatives)

    async def _call(self, url: str, body: Any, read: Callable[[http.client.HTTPResponse], T], limits: ReplyLimits) -> T:
        call = _Call(self, "POST", url, body, limits)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call.run, read)
        except asyncio.CancelledError:
            call.cancel()
            raise

    def _json(self, raw: bytes) -> Any:
        try:
            return json.loads(raw)
        except RecursionError:
            raise ModelError(f"{self.url} sent JSON that is nested too deep to be an answer") from None
        except ValueError:
            start = self.redact_key(_shorten(raw))
            raise ModelError(f"{self.url} sent what is not JSON: {start!r}; is it the right address?") from None

    def _events(self, reply: http.client.HTTPResponse, limits: ReplyLimits) -> Iterator[Any]:
        """The data of server-sent events. A stream that ends without its last event was cut off."""
        for line in _lines(reply, limits):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = self._json(data)
            if isinstance(event, dict) and event.get("error"):
                raise _Retryable(f"the server broke off: {self.redact_key(_error_message(data))}")
            yield event
        raise _Retryable("the stream ended before its end")

    def redact_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    def headers(self) -> dict[str, str]:
        plain = {"Content-Type": "application/json", "Accept": "application/json"}
        return plain if not self._key else plain | {"Authorization": f"Bearer {self._key}"}


class _Call:
    """One request and its attempts, in a thread. Other threads call `cancel` and `expire`."""

    def __init__(self, server: HttpClient, method: str, url: str, body: Any, limits: ReplyLimits) -> None:
        self.server, self.method, self.url, self.limits = server, method, url, limits
        self.body = None if body is None else json.dumps(body).encode()
        self._cancelled = threading.Event()
        self._expired = False  # the time limit is reached
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None  # the library drops its reference when a reply begins

    def expire(self) -> None:
        self._expired = True
        self.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            if self._sock is not None:
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it

    def run(self, read: Callable[[http.client.HTTPResponse], T]) -> T:
        timer = threading.Timer(min(self.limits.max_seconds, threading.TIMEOUT_MAX), self.expire)
        timer.daemon = True
        timer.start()
        try:
            return self._run_with_retries(read)
        except _Cancelled:
            if not self._expired:
                raise
            raise ModelError(
                f"{self.url} had not ended its answer after {self.limits.max_seconds:g} s: ask for fewer tokens, or "
                "give a longer timeout"
            ) from None
        finally:
            timer.cancel()

    def _run_with_retries(self, read: Callable[[http.client.HTTPResponse], T]) -> T:
        for attempt in range(self.server.retries + 1):
            if self._cancelled.is_set():
                raise _Cancelled
            try:
                return self._attempt(read)
            except _Retryable as reason:
                last = reason
            if attempt < self.server.retries:
                jitter = 0.5 + random.random()  # so that calls do not retry at the same time
                wait = last.wait or 0.5 * 2**attempt * jitter
                _pause(self._cancelled, min(wait, _MAX_RETRY_WAIT_SECONDS))
        attempts = f" ({self.server.retries + 1} tries)" if self.server.retries else ""
        raise ModelError(f"{self.url}: {last}{attempts}; check that the server runs there, then try again") from None

    def _attempt(self, read: Callable[[http.client.HTTPResponse], T]) -> T:
        """On a kept connection if there is one; where the server has closed that in the meantime, on a new one."""
        kept = self.server.connections.take()
        if kept is not None:
            with suppress(_Stale):
                return self._attempt_on(kept, read, is_kept=True)
        return self._attempt_on(self.server.connections.open(), read, is_kept=False)

    def _attempt_on(
        self, connection: http.client.HTTPConnection, read: Callable[[http.client.HTTPResponse], T], is_kept: bool
    ) -> T:
        self._sock, is_open_for_next = None, False
        try:
            reply = self._send(connection, is_kept)
            if reply.status == 200:
                self._refuse_compression(reply)
                result = read(reply)
                if self._expired:  # a shut connection may look like the end of the reply
                    raise _Cancelled
                self._release_socket()
                is_open_for_next = not self._cancelled.is_set() and is_over(connection, reply)
                return result
            self._raise_for_status(reply)
        except (_Retryable, PonderError):
            if self._cancelled.is_set():
                raise _Cancelled from None
            raise
        except (_Cancelled, _Stale):
            raise
        except _ReplyTooLarge as reason:
            raise ModelError(f"{self.url} {reason}; no answer to this request is so large, so it is refused") from None
        except TimeoutError:
            if self._sock is None:
                raise _Retryable(f"no connection within {CONNECT_SECONDS:g} s") from None
            raise ModelError(
                f"{self.url} was silent for {self.server.timeout:g} s: ask for fewer tokens, or give a longer timeout"
            ) from None
        except ssl.SSLCertVerificationError as reason:
            raise ModelError(f"{self.url}: {reason.verify_message}; its certificate is not trusted") from None
        except (OSError, http.client.HTTPException) as reason:
            if self._cancelled.is_set():
                raise _Cancelled from None
            if isinstance(reason, http.client.LineTooLong) or "got more than" in str(reason):
                raise ModelError(f"{self.url} sent headers that no server sends ({_shorten(str(reason))})") from None
            raise _Retryable(f"the connection failed ({_shorten(str(reason)) or type(reason).__name__})") from None
        finally:
            self._release_socket()
            if is_open_for_next:
                self.server.connections.give_back(connection)
            else:
                connection.close()

    def _send(self, connection: http.client.HTTPConnection, is_kept: bool) -> http.client.HTTPResponse:
        """Send the request, and wait for the head of the reply."""
        if not is_kept:
            connection.connect()
        connection.sock.settimeout(self.server.timeout)
        with self._lock:
            self._sock = connection.sock
            if self._cancelled.is_set():
                raise _Cancelled
        path = self.url.split("://", 1)[1]
        try:
            connection.request(self.method, "/" + path.partition("/")[2], self.body, self.server.headers())
            return connection.getresponse()
        except Exception as reason:
            if is_kept and is_stale(reason) and not self._cancelled.is_set():
                raise _Stale from None
            raise

    def _release_socket(self) -> None:
        """From now on `cancel` does not shut the socket."""
        with self._lock:
            self._sock = None

    def _refuse_compression(self, reply: http.client.HTTPResponse) -> None:
        """Compression is not requested and not accepted: a few bytes of it may expand to gigabytes."""
        if (form := reply.getheader("Content-Encoding", "identity")).strip().lower() not in ("", "identity"):
            raise ModelError(f"{self.url} sent a compressed reply ({_shorten(form)}), which was not asked for")

    def _raise_for_status(self, reply: http.client.HTTPResponse) -> NoReturn:
        message = self.server.redact_key(_error_message(_read_start(reply, _ERROR_BYTES)))
        if reply.status in _RETRY_STATUSES:
            raise _Retryable(
                f"answered {reply.status}: {message}", _retry_after_seconds(reply.getheader("Retry-After"))
            )
        if 300 <= reply.status < 400:
            message = f"moved to {_shorten(reply.getheader('Location', 'nowhere'))}: give that address"
        if reply.status in (401, 403):
            message += "; set OPENAI_API_KEY to a key that this server accepts"
        raise RequestRefused(reply.status, message, self.url)


def _pause(cancelled: threading.Event, seconds: float) -> None:
    """Wait until the next attempt, or until the call is cancelled."""
    cancelled.wait(seconds)


class _ReplyTooLarge(Exception):
    """The reply is larger than its limits."""


def _body_chunks(reply: http.client.HTTPResponse, limits: ReplyLimits) -> Iterator[bytes]:
    """The body as it arrives, up to the limit. `read1` itself does not report that a body was cut short."""
    size, length = 0, reply.length  # None: until the connection is closed, or in chunks
    while length is None or size < length:
        piece = reply.read1(_READ_BYTES if length is None else min(_READ_BYTES, length - size))
        if not piece:
            break
        size += len(piece)
        if size > limits.max_body_bytes:
            raise _ReplyTooLarge(f"sent more than {limits.max_body_bytes / 2**20:g} MiB")
        yield piece
    if length is not None and size < length:
        raise http.client.IncompleteRead(b"", length - size)


def _read_body(reply: http.client.HTTPResponse, limits: ReplyLimits) -> bytes:
    return b"".join(_body_chunks(reply, limits))


def _read_start(reply: http.client.HTTPResponse, size: int) -> bytes:
    """The first bytes of a body; the rest is not read."""
    out = b""
    with suppress(_ReplyTooLarge):
        for piece in _body_chunks(reply, ReplyLimits(max_body_bytes=size)):
            out += piece
    return out


def _lines(reply: http.client.HTTPResponse, limits: ReplyLimits) -> Iterator[bytes]:
    """The non-empty lines of a body, without their ends."""
    left: list[bytes] = []  # of a line that has not ended
    size = 0
    for piece in _body_chunks(reply, limits):
        *ended, rest = piece.split(b"\n")
        if ended:
            ended[0] = b"".join((*left, ended[0]))
            left, size = [], 0
        yield from filter(None, ended)
        left.append(rest)
        size += len(rest)
        if size > limits.max_line_bytes:
            raise _ReplyTooLarge(f"sent a line of more than {limits.max_line_bytes / 2**20:g} MiB")
    if size:
        yield b"".join(left)


def _error_message(raw: bytes) -> str:
    """The message of an error, which servers put in different places."""
    try:
        value = json.loads(raw)
        while isinstance(value, dict):
            value = next((value[k] for k in ("error", "message", "detail") if value.get(k)), str(value))
        return _shorten(str(value))
    except (ValueError, RecursionError):
        return _shorten(raw)


def _shorten(message: bytes | str) -> str:
    text = message[:1000].decode(errors="replace") if isinstance(message, bytes) else message[:1000]
    text = escape_controls(" ".join(text.split()))
    return text if len(text) <= 300 else text[:300] + "…"


def _retry_after_seconds(header: str | None) -> float:
    """Retry-After in seconds; a date or anything else counts as 0."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0
