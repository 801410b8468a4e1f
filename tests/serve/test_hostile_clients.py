"""Clients that are slow, large, many or not HTTP at all: each is bounded, and others are served."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import re
import select
import socket
import time
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from ponder.serve.limits import Limits
from serve.live_server import live_server, pausing_engine, wait_until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@contextmanager
def raw_connection(server, data=b"", seconds=120.0):
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(data)
        yield connection


def read_to_end(connection):
    """All that the server sends until it closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_reply(connection):
    """The status and the error of one reply."""
    data = b""
    while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _content_length(data):
        part = connection.recv(65536)
        assert part, f"closed after {data!r:.200}"
        data += part
    return split_reply(data)


def _content_length(data):
    return int(re.search(rb"content-length: (\d+)", data.lower())[1])


def split_reply(data):
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def is_served(server):
    """Again where the server hung up first: on a busy machine a head may take longer than these tests allow it to."""
    for _ in range(100):
        try:
            return server.get("/health").status == 200
        except (OSError, http.client.HTTPException):
            continue
    return False


@pytest.mark.parametrize("data", [b"", b"GET / HT", HEAD, HEAD + b"x-a: " + b"x" * 1000])
def test_head_that_never_ends_is_closed(data):
    with live_server(limits=Limits(head_seconds=0.3)) as server, ExitStack() as stack:
        open_ones = [stack.enter_context(raw_connection(server, data)) for _ in range(20)]
        assert is_served(server)
        assert [read_to_end(one) for one in open_ones] == [b""] * 20
        assert is_served(server)


def test_head_in_drips_is_closed():
    with live_server(limits=Limits(head_seconds=0.3)) as server, raw_connection(server) as slow:
        with pytest.raises(OSError):
            for byte in (HEAD + b"x: y\r\n" * 1000) * 100:
                slow.sendall(bytes([byte]))
                time.sleep(0.01)
        assert is_served(server)


def test_second_head_that_never_ends_is_closed():
    with live_server(limits=Limits(head_seconds=0.3)) as server:
        with raw_connection(server, b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n") as slow:
            read = b""
            while not read.endswith(b'{"status":"ok"}'):
                read += slow.recv(65536)
            slow.sendall(b"GET /hea")
            assert read_to_end(slow) == b""


def test_body_that_never_ends_is_a_408():
    with live_server(limits=Limits(body_seconds=0.3)) as server:
        with raw_connection(server, HEAD + b"content-length: 1000\r\n\r\n{") as slow:
            assert is_served(server)
            status, error = split_reply(read_to_end(slow))
    assert (status, error["code"]) == (408, "timeout")


def test_body_of_a_gigabyte_is_refused_by_its_head():
    with live_server() as server:
        with raw_connection(server, HEAD + b"content-length: 1000000000\r\n\r\n" + b"x" * 300_000) as large:
            status, error = split_reply(read_to_end(large))
        assert is_served(server)
    assert (status, error["code"]) == (413, "request_too_large")


def test_reset_under_the_reply_is_no_error(monkeypatch, capfd):
    """The client is gone between the reply and the end of it: too short a time to hit, so the end fails here."""

    def not_connected(transport):
        raise OSError(errno.ENOTCONN, "not connected")

    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "write_eof", not_connected)
    with live_server() as server:
        with raw_connection(server, HEAD + b"content-length: 1000000000\r\n\r\n") as gone:
            assert split_reply(read_to_end(gone))[0] == 413
        assert is_served(server)
    assert "Traceback" not in capfd.readouterr().err


def test_chunked_body_without_end_is_refused_where_it_is_too_large():
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with live_server(limits=Limits(max_body_bytes=1 << 20)) as server:
        with raw_connection(server, HEAD + b"transfer-encoding: chunked\r\n\r\n") as endless:
            sent = 0
            try:
                while sent < 1 << 30:
                    endless.sendall(chunk)
                    sent += len(chunk)
            except OSError:
                pass
            assert sent < 1 << 28
            reply = read_to_end(endless)
        assert is_served(server)
    assert not reply or split_reply(reply)[0] == 413


@pytest.mark.parametrize(
    "begin",
    [HEAD, HEAD + b"x: ", HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"],
    ids=["headers", "header", "trailers"],
)
def test_head_without_end_is_refused_where_it_is_too_large(begin):
    more = b"x-y: " + b"z" * 1000 + (b"" if begin.endswith(b"x: ") else b"\r\n")
    with live_server() as server:
        with raw_connection(server, begin) as endless:
            sent = 0
            try:
                while sent < 1 << 26:
                    endless.sendall(more)
                    sent += len(more)
            except OSError:
                pass
            assert sent < 1 << 25
        assert is_served(server)


def test_request_before_the_last_reply_does_not_hide_that_the_client_is_gone():
    body = json.dumps({"model": "plain", "stream": True, "messages": [{"role": "user", "content": "2+2?"}],
                       "max_completion_tokens": 400, "logit_bias": {"2": -100}}).encode()  # fmt: skip
    ask = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    with live_server() as server, pausing_engine(3) as go_on:
        with raw_connection(server, ask) as hasty:
            assert hasty.recv(12) == b"HTTP/1.1 200"
            hasty.sendall(ask + ask)
        wait_until(lambda: not len(server.service.running))
        go_on.set()
        assert is_served(server)


def test_bodies_together_are_bounded():
    limits = Limits(max_body_bytes=1 << 20, max_total_body_bytes=1 << 20)
    part = HEAD + b"content-length: 900000\r\n\r\n" + b" " * 600_000
    with live_server(limits=limits) as server, ExitStack() as stack:
        first, second = (stack.enter_context(raw_connection(server, part)) for _ in range(2))
        (refused, *_), _, _ = select.select([first, second], [], [], 120.0)
        assert read_reply(refused)[0] == 503
        assert is_served(server)
        first.close()
        second.close()
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "model": "plain", "max_tokens": 1}).encode()
        assert server.post("/v1/chat/completions", body + b" " * 600_000).status == 200


def test_more_connections_than_allowed_displace_idle_ones():
    with live_server(limits=Limits(max_connections=30, head_seconds=60)) as server, ExitStack() as stack:
        idle = [stack.enter_context(raw_connection(server, b"GET / HT")) for _ in range(150)]
        for _ in range(5):
            assert is_served(server)
        wait_until(lambda: sum(map(is_closed, idle)) >= 120)


def is_closed(connection):
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_client_that_does_not_read_is_closed():
    with live_server(limits=Limits(stall_seconds=0.3)) as server:
        ask = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        with raw_connection(server) as deaf:
            deaf.settimeout(1)
            with pytest.raises(OSError):
                for _ in range(2000):
                    deaf.sendall(ask * 100)
        assert is_served(server)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"x" * 200_000 + b"\r\n\r\n",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_400_in_json(data):
    with live_server(limits=Limits(head_seconds=2, body_seconds=2)) as server:
        with raw_connection(server, data) as odd:
            status, error = read_reply(odd)
        assert is_served(server)
    assert 400 <= status < 500 and error["message"]


def test_websocket_is_not_there():
    ask = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    with live_server(limits=Limits(head_seconds=1)) as server, raw_connection(server, ask) as odd:
        reply = b""
        while len(reply) < 12:
            reply += odd.recv(65536)
        assert reply.startswith(b"HTTP/1.1 200")
