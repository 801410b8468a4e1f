"""A server on the loopback that answers each request with whatever bytes it is told to."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Send = Callable[[bytes], None]
Script = Callable[[Send], None]  # writes a whole reply, headers too; `send` raises OSError when the caller has gone

MODELS: dict[str, Any] = {"data": [{"id": "small", "owned_by": "vllm", "max_model_len": 64}]}


class Hostile:
    """`script` answers POSTs; `sent` counts what it could write before the caller hung up."""

    def __init__(self, script: Script, models: Any = MODELS) -> None:
        self.script, self.models, self.sent, self.asked = script, models, 0, 0
        self.done = threading.Event()  # set at the end: whoever drips stops
        self._reached = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            file = peer.makefile("rb")
            line = file.readline()
            length = 0
            while (header := file.readline().strip().lower()) != b"":
                if header.startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            file.read(length)
            if b"/tokenize" in line:
                peer.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n{}")
                return
            if line.startswith(b"GET"):
                body = self.models if isinstance(self.models, bytes) else json.dumps(self.models).encode()
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                return
            self.asked += 1
            self._reached.set()

            def send(data: bytes) -> None:
                if self.done.is_set():
                    raise OSError("over")
                peer.sendall(data)
                self.sent += len(data)

            self.script(send)

    def wait_for_request(self) -> None:
        """A caller may give up before this server's thread has read its request."""
        assert self._reached.wait(60), "no request came"

    def close(self) -> None:
        self.done.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, which closing alone does not
        self._listening.close()


@contextmanager
def hostile(script: Script, models: Any = MODELS) -> Iterator[Hostile]:
    server = Hostile(script, models)
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.close()


def body(data: bytes, headers: bytes = b"", status: bytes = b"200 OK") -> Script:
    return lambda send: send(
        b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n" % len(data) + headers + b"\r\n" + data
    )


def stream(*events: Any, done: bool = True) -> Script:
    """Server-sent events: JSON of what is given, or bytes as they are."""
    lines = [e if isinstance(e, bytes) else b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]
    return body(b"".join(lines) + (b"data: [DONE]\n\n" if done else b""))
