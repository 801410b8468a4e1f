"""From HTTP to a service and back: bodies, whole replies, streams of server-sent events. A client that goes away ends
its request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from ponder.serve.errors import ApiError, from_exception, too_large
from ponder.serve.json_body import Fields, parse_body
from ponder.serve.limits import Limits

T = TypeVar("T")
Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"
_LARGE_BODY_BYTES = 1 << 18  # parsed in a thread, while others are served


_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode  # made once


def to_json(value: Any) -> bytes:
    return _encode_json(value).encode(errors="replace")


def sse(value: Any, event: str = "") -> bytes:
    """One server-sent event, with a name where the API has named ones."""
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + to_json(value) + b"\n\n"


async def read_fields(request: Request, limits: Limits) -> Fields:
    """The JSON object of a request's body, read within the limits on size and time."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.max_body_bytes:
                    raise too_large(limits.max_body_bytes)
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {limits.body_seconds:g} s", code="timeout") from None
    data = b"".join(parts)
    return Fields(parse_body(data) if size < _LARGE_BODY_BYTES else await asyncio.to_thread(parse_body, data))


class Reply:
    """An ASGI response with a JSON body."""

    def __init__(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.headers = status, dict(headers or {})
        self.body = value if isinstance(value, bytes) else to_json(value)
        self.content_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"content-type": self.content_type, "content-length": str(len(self.body)), **self.headers}
        await send({"type": "http.response.start", "status": self.status, "headers": _encode(headers)})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self.body})


class ErrorReply(Reply):
    def __init__(self, error: ApiError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error.body(), error.status, {**error.headers, **(headers or {})})


class StreamReply:
    """An ASGI response that sends pieces as they come, and a comment where none came for a while. An error before the
    first piece is an ordinary reply; after it, it is a `data:` object with `error`, which clients raise. Where the
    client goes away, the generator is closed."""

    def __init__(
        self, pieces: AsyncGenerator[bytes], headers: Mapping[str, str] | None = None, keepalive_seconds: float = 10.0
    ) -> None:
        self.pieces, self.headers, self.keepalive_seconds = pieces, dict(headers or {}), keepalive_seconds
        self._is_started = self._is_sending = self._is_complete = False
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._keep_alive(send)
        try:
            with UntilDisconnect(receive):
                await self._send_pieces(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            for waiting in (self._timer, self._comment):
                if waiting is not None:
                    waiting.cancel()

    async def _send_pieces(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.pieces) as pieces:
            try:
                async for piece in pieces:
                    await self._send(send, piece, is_last=piece.endswith(DONE))
                if not self._is_complete:
                    await self._send(send, b"", is_last=True)
            except Exception as reason:
                error = from_exception(reason)
                if not self._is_started:
                    self._is_started = True
                    await ErrorReply(error, self.headers)(scope, receive, send)
                elif not self._is_complete:
                    await self._send(send, b"data: " + error.body() + b"\n\n", is_last=True)
                if error.status >= 500 and error is not reason:
                    raise  # the server's log has the traceback

    async def _send(self, send: Send, piece: bytes, is_last: bool = False) -> None:
        if self._comment is not None:  # a piece and a comment never mix
            await asyncio.wait({self._comment})
        self._is_sending = True
        await self._write(send, piece, is_last)
        self._is_sending = False

    async def _write(self, send: Send, piece: bytes, is_last: bool = False) -> None:
        if not self._is_started:
            self._is_started = True
            head = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", **self.headers}
            await send({"type": "http.response.start", "status": 200, "headers": _encode(head)})
        self._is_complete = is_last
        await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
        self._sent_at = asyncio.get_running_loop().time()

    def _keep_alive(self, send: Send) -> None:
        """Send a comment where nothing was sent for a while, and look again later."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        is_busy = self._is_sending or self._is_complete or self._comment is not None
        if self._sent_at and now >= self._sent_at + self.keepalive_seconds and not is_busy:
            self._comment = loop.create_task(self._write(send, KEEPALIVE))
            self._comment.add_done_callback(self._end_comment)
        self._sent_at = self._sent_at or now
        next_at = max(self._sent_at, now - 0.9 * self.keepalive_seconds) + self.keepalive_seconds
        self._timer = loop.call_at(next_at, self._keep_alive, send)

    def _end_comment(self, comment: asyncio.Task[None]) -> None:
        self._comment = None
        if not comment.cancelled():
            comment.exception()  # the next piece fails in the same way


async def unless_disconnected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of the work. Where the client goes away first, the work is cancelled and ClientDisconnect raised."""
    with UntilDisconnect(receive):
        return await work


class UntilDisconnect:
    """A block in which the current task is cancelled as soon as the client goes away; the block then raises
    ClientDisconnect."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._is_gone = receive, False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.ensure_future(wait_for_disconnect(self._receive))
        self._watch.add_done_callback(self._leave)

    def _leave(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # nobody else looks at it
        self._is_gone = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._watch.remove_done_callback(self._leave)
        self._watch.cancel()
        if self._is_gone and not self._task.uncancel() and kind is asyncio.CancelledError:
            raise ClientDisconnect


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
