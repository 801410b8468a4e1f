"""Calls use connections again, and a connection that cannot be used again costs no call."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from fakes import run_async
from ponder.errors import ModelError
from ponder.models.http_client import HttpClient

BODY = b'{"a":1}'
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
STREAM = b'data: {"a":1}\n\ndata: [DONE]\n\n'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(STREAM), STREAM)


class CountingServer:
    """Answers each request on a connection with the same bytes; `closes_after` requests, it closes the connection."""

    def __init__(self, reply: bytes, closes_after: int = 1 << 30) -> None:
        self.reply, self.closes_after = reply, closes_after
        self.connections = self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, suppress(OSError, ValueError), peer.makefile("rb") as file:
            for _ in range(self.closes_after):
                if not file.readline():
                    return
                length = 0
                while header := file.readline().strip().lower():
                    if header.startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                file.read(length)
                self.requests += 1
                peer.sendall(self.reply)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def counting(reply: bytes, closes_after: int = 1 << 30) -> Iterator[CountingServer]:
    server = CountingServer(reply, closes_after)
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.close()


def client(server: CountingServer, retries: int = 0) -> HttpClient:
    return HttpClient(server.url, None, max_concurrency=4, timeout=20, retries=retries)


def post(http: HttpClient, server: CountingServer) -> object:
    return run_async(http.post(server.url, {}))


def stream(http: HttpClient, server: CountingServer) -> object:
    return run_async(http.stream(server.url, {}, list))[0]


@pytest.mark.parametrize(("reply", "call"), [(WHOLE, post), (CHUNKED, stream)])
def test_calls_one_after_another_use_one_connection(reply: bytes, call: Callable[..., object]) -> None:
    with counting(reply) as server:
        http = client(server)
        assert [call(http, server) for _ in range(5)] == [json.loads(BODY)] * 5
        assert (server.requests, server.connections) == (5, 1)


def test_calls_at_the_same_time_have_a_connection_each() -> None:
    async def together(http: HttpClient, url: str) -> list[object]:
        return await asyncio.gather(*(http.post(url, {}) for _ in range(4)))

    with counting(WHOLE) as server:
        http = client(server)
        for _ in range(3):
            assert len(run_async(together(http, server.url))) == 4
        assert server.requests == 12 and server.connections <= 4


def test_connection_that_the_server_closed_is_replaced_without_a_retry() -> None:
    with counting(WHOLE, closes_after=1) as server:
        http = client(server, retries=0)
        for _ in range(20):
            post(http, server)
        assert server.requests == 20 == server.connections


def test_connection_is_not_used_again_where_the_server_says_so() -> None:
    with counting(WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")) as server:
        http = client(server)
        assert [post(http, server) for _ in range(3)] == [json.loads(BODY)] * 3
        assert server.connections == 3


def test_second_reply_to_one_request_is_not_the_answer_to_the_next() -> None:
    with counting(WHOLE + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as server:
        http = client(server)
        assert [post(http, server) for _ in range(5)] == [json.loads(BODY)] * 5


def test_stream_without_its_end_is_answered_and_its_connection_dropped() -> None:
    endless = CHUNKED.removesuffix(b"0\r\n\r\n")
    with counting(endless) as server:
        http = client(server)
        assert [stream(http, server) for _ in range(2)] == [json.loads(BODY)] * 2
        assert server.connections == 2


def test_closing_server_that_never_answers_is_an_error_and_not_asked_for_ever() -> None:
    with counting(WHOLE, closes_after=1) as server:
        http = client(server, retries=1)
        post(http, server)
        server.reply = b""
        with pytest.raises(ModelError, match="2 tries"):
            post(http, server)
        assert server.requests <= 4
