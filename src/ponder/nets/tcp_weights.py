"""Weights to other machines: the publisher's buffer over TCP, to whoever has the key of the version."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ponder.errors import ModelError
from ponder.local_http import bind

if TYPE_CHECKING:
    from ponder.nets.weight_transports import TensorPlace

IO_SECONDS = 60.0  # that one side may take to send or take the next bytes
_KEY_CHARS = 64
_ACCEPT_SECONDS = 0.5


class TcpTransport:
    """Serves the buffer on a port of its own, from threads: the learner may be busy while replicas read. A version has
    a key of its own, which the manifest carries beside the checksums, and which the next version ends."""

    name: ClassVar[str] = "tcp"
    device = torch.device("cpu")

    def __init__(self, host: str) -> None:
        self._listener = bind(host, 0)
        self._listener.settimeout(_ACCEPT_SECONDS)
        self._address = [host, self._listener.getsockname()[1]]
        self._buffer, self._nbytes, self._key = torch.empty(0, dtype=torch.uint8), 0, ""
        self._closed = False
        threading.Thread(target=self._accept, name="weights", daemon=True).start()

    def begin(self, nbytes: int) -> Tensor:
        self._key = ""
        if len(self._buffer) < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8)
        return self._buffer

    def commit(self, version: int, places: Sequence[TensorPlace]) -> dict[str, Any]:
        self._nbytes, self._key = max(p.offset + p.nbytes for p in places), secrets.token_hex(_KEY_CHARS // 2)
        return {"address": self._address, "key": self._key, "nbytes": self._nbytes}

    def close(self) -> None:
        self._closed, self._key = True, ""

    def _accept(self) -> None:
        with self._listener:
            while not self._closed:
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._listener.accept()
                    threading.Thread(target=self._serve, args=(connection,), name="weights", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(IO_SECONDS)
            given = _receive(connection, bytearray(_KEY_CHARS))
            if self._key and hmac.compare_digest(bytes(given), self._key.encode()):
                connection.sendall(self._buffer[: self._nbytes].numpy().data)


def fetch_buffer(source: Mapping[str, Any]) -> Tensor:
    """In a reader: the bytes of a version."""
    host, port = source["address"]
    with socket.create_connection((host, port), timeout=IO_SECONDS) as connection:
        connection.sendall(source["key"].encode())
        return torch.frombuffer(_receive(connection, bytearray(source["nbytes"])), dtype=torch.uint8)


def _receive(connection: socket.socket, buffer: bytearray) -> bytearray:
    view, count = memoryview(buffer), 0
    while count < len(buffer):
        if not (size := connection.recv_into(view[count:])):
            raise ModelError(f"the connection ended after {count:,} of {len(buffer):,} bytes")
        count += size
    return buffer
