"""How a learner and its process on another machine know each other: both prove that they have the same ticket.

The ticket is drawn for one start of one replica and comes to it by its environment. Neither side sends it: each sends a
random number, and answers the other's with an HMAC (RFC 2104) of both numbers. What follows on the connection is
neither signed nor encrypted, as with torch.distributed: it is for a network whose machines are trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ponder.cluster.wire import frame, read_frame
from ponder.errors import ModelError
from ponder.local_http import bind

ADDRESS_VARIABLE, NAME_VARIABLE, TICKET_VARIABLE = (
    "PONDER_REPLICA_ADDRESS",
    "PONDER_REPLICA_NAME",
    "PONDER_REPLICA_TICKET",
)
HANDSHAKE_SECONDS = 20.0
_MAX_HELLO_BYTES = 4096  # of a stranger's message
_STREAM_LIMIT = 1 << 26

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ReplicaListener:
    """Takes the connections of replicas that were announced, each once, and closes all others."""

    def __init__(self, host: str) -> None:
        self.host, self.port = host, 0
        self.refused = 0
        self._expected: dict[str, tuple[str, asyncio.Future[Connection]]] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        listener = bind(self.host, 0)
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_STREAM_LIMIT)

    def expect(self, name: str) -> tuple[dict[str, str], asyncio.Future[Connection]]:
        """A replica with this name will connect: what to put into its environment, and its connection."""
        name, ticket = f"{name}-{secrets.token_hex(4)}", secrets.token_hex(32)
        connection: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._expected[name] = (ticket, connection)
        connection.add_done_callback(lambda _: self._expected.pop(name, None))
        variables = {ADDRESS_VARIABLE: f"{self.host}:{self.port}", NAME_VARIABLE: name, TICKET_VARIABLE: ticket}
        return variables, connection

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = None
        with contextlib.suppress(TimeoutError, ModelError, ValueError, KeyError, TypeError, OSError):
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                name = await self._greet(reader, writer)
        expected = self._expected.get(name or "")
        if expected is None or expected[1].done():
            self.refused += 1
            writer.close()
            return
        keep_alive(writer)
        expected[1].set_result((reader, writer))

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        """The name of the replica; None: it has not proved that it is one."""
        mine = secrets.token_hex(16)
        writer.write(frame({"nonce": mine}))
        hello = await read_frame(reader, _MAX_HELLO_BYTES)
        if hello is None:
            return None
        name, theirs = str(hello["name"]), str(hello["nonce"])
        ticket = self._expected[name][0]
        if not hmac.compare_digest(str(hello["proof"]), proof(ticket, "replica", mine, theirs)):
            return None
        writer.write(frame({"proof": proof(ticket, "learner", mine, theirs)}))
        await writer.drain()
        return name

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for _, connection in list(self._expected.values()):
            connection.cancel()


async def join_learner(environment: Mapping[str, str]) -> Connection:
    """In a replica: connect to the learner that started it."""
    host, _, port = environment[ADDRESS_VARIABLE].rpartition(":")
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        reader, writer = await asyncio.open_connection(host, int(port), limit=_STREAM_LIMIT)
        greeting = await read_frame(reader, _MAX_HELLO_BYTES)
        if greeting is None:
            raise ModelError(f"the learner at {host}:{port} closed the connection")
        theirs, mine, ticket = str(greeting["nonce"]), secrets.token_hex(16), environment[TICKET_VARIABLE]
        hello = {"name": environment[NAME_VARIABLE], "nonce": mine, "proof": proof(ticket, "replica", theirs, mine)}
        writer.write(frame(hello))
        answer: dict[str, Any] = await read_frame(reader, _MAX_HELLO_BYTES) or {}
        if not hmac.compare_digest(str(answer.get("proof")), proof(ticket, "learner", theirs, mine)):
            raise ModelError(f"{host}:{port} is not the learner that started this replica")
    keep_alive(writer)
    return reader, writer


def proof(ticket: str, side: str, learner_nonce: str, replica_nonce: str) -> str:
    text = f"{side}:{learner_nonce}:{replica_nonce}".encode()
    return hmac.new(ticket.encode(), text, hashlib.sha256).hexdigest()


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Let the kernel notice within two minutes that the other machine is gone: then the stream ends."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):  # not on macOS
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


Serve = Callable[[asyncio.StreamReader, Callable[[bytes], None]], Awaitable[None]]


async def serve_on(output: int, serve: Serve) -> None:
    """Serve on the connection that the environment names, or on standard input and this descriptor."""
    if ADDRESS_VARIABLE in os.environ:
        connected, writer = await join_learner(os.environ)
        await serve(connected, writer.write)
        return
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(data: bytes) -> None:
        payload = memoryview(data)
        while payload:
            payload = payload[os.write(output, payload) :]

    await serve(reader, write)
