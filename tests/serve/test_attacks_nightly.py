"""A server process under attack: its memory stays bounded, and another client is served all the while.

10,000 connections, 1 GB bodies, bodies of many values, deep ones, and gzip bombs, against a real `ponder serve`. Run
with -s, it prints what it measured.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")
pytest.importorskip("uvicorn", reason="the server needs ponder[serve]")

from serve.served_folders import save_policy

pytestmark = pytest.mark.nightly

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
MAX_GROWTH_MIB = 900  # 512 MiB of bodies, and what parsing one of them takes


@contextmanager
def server_process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "ponder", "serve", f"tiny={save_policy(folder)}", "--port", "0", "--device", "cpu"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield process, int(found[1])
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()


def memory_mib(process: subprocess.Popen[str]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


class OtherClient(threading.Thread):
    """Asks for an answer again and again."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.stop, self.statuses, self.slowest = port, threading.Event(), [], 0.0

    def run(self) -> None:
        body = json.dumps({"messages": [{"role": "user", "content": "12+3"}], "max_tokens": 2})
        while not self.stop.wait(0.05):
            begin = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            try:
                connection.request("POST", "/v1/chat/completions", body)
                self.statuses.append(connection.getresponse().status)
            except OSError as reason:
                self.statuses.append(repr(reason))
            finally:
                connection.close()
            self.slowest = max(self.slowest, time.monotonic() - begin)


def post(port: int, body: bytes, headers: bytes = b"") -> bytes:
    """The beginning of the reply; empty if the server cut the connection before the client could read."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        with suppress(OSError):
            connection.sendall(HEAD + headers + b"content-length: %d\r\n\r\n" % len(body) + body)
        with suppress(OSError):
            return connection.recv(65536)
    return b""


def many_connections(port: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - 500)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 500), hard))
    held = []
    try:
        for i in range(wanted):
            with suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=10))
                held[-1].sendall(HEAD[: 1 + i % len(HEAD)])
        assert len(held) > 0.9 * wanted
    finally:
        for connection in held:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unread_gigabyte(port: int) -> None:
    """A chunked body without end, as fast as the server takes it."""
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, suppress(OSError):
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(1000):
            connection.sendall(chunk)


def half_bodies(port: int) -> None:
    """Sixty bodies of 15 MB that wait for their last byte: 900 MB, of which the server takes part."""
    held = []
    try:
        for _ in range(60):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=60))
            with suppress(OSError):
                held[-1].sendall(HEAD + b"content-length: 15000001\r\n\r\n" + b" " * 15_000_000)
    finally:
        for connection in held:
            connection.close()


def attacks(port: int) -> Iterator[tuple[str, object]]:
    mega = 1 << 20
    yield "10,000 connections", lambda: many_connections(port)
    yield "declared gigabyte", lambda: post(port, b"x" * mega, b"content-length: 1000000000\r\n")
    yield "chunked gigabyte", lambda: unread_gigabyte(port)
    yield "sixty half bodies", lambda: half_bodies(port)
    yield "millions of objects", lambda: [post(port, b'{"a":[' + b"{}," * (4 * mega) + b"{}]}") for _ in range(5)]
    yield "deep lists", lambda: [post(port, b"[" * (15 * mega)) for _ in range(5)]
    yield "escapes", lambda: [post(port, b'{"a":"' + b'\\"' * (7 * mega) + b'"}') for _ in range(5)]
    bomb = gzip.compress(bytes(256 * mega), 1)
    yield "gzip bomb", lambda: [post(port, bomb, b"content-encoding: gzip\r\n") for _ in range(20)]


def test_memory_is_bounded_and_others_are_served(tmp_path):
    with server_process(tmp_path / "model") as (process, port):
        other = OtherClient(port)
        other.start()
        while len(other.statuses) < 3:
            time.sleep(0.1)
        before = memory_mib(process)
        print(f"\nbefore: {before:.0f} MiB")
        highest = 0.0
        for name, attack in attacks(port):
            served, peak, done = len(other.statuses), [before], threading.Event()
            watch = threading.Thread(target=_watch, args=(process, peak, done))
            watch.start()
            other.slowest = 0.0
            attack()
            while len(other.statuses) < served + 2:
                time.sleep(0.1)
            done.set()
            watch.join()
            highest = max(highest, peak[0])
            count = len(other.statuses) - served
            print(f"{name}: peak {peak[0]:.0f} MiB, {count} others served, slowest {other.slowest:.1f} s")
        other.stop.set()
        other.join(120)
        time.sleep(1)
        print(f"after: {memory_mib(process):.0f} MiB, {len(os.listdir(f'/proc/{process.pid}/fd'))} descriptors")
        assert process.poll() is None
        assert set(other.statuses) == {200}, set(other.statuses)
        assert highest < before + MAX_GROWTH_MIB


def _watch(process, peak, done):
    while not done.wait(0.05):
        peak[0] = max(peak[0], memory_mib(process))
