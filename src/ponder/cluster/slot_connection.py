"""A process in a slot, and the connection to it, for a thread that blocks: the handshake of handshake.py, then lines.

It is used as a child on two pipes is: one file descriptor to write to and one to read from, a kill, and how it ended.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.cluster.handshake import ADDRESS_VARIABLE, HANDSHAKE_SECONDS, NAME_VARIABLE, TICKET_VARIABLE, proof
from ponder.cluster.places import Place, Slot, how_it_ended
from ponder.errors import PonderError
from ponder.local_http import bind

_MAX_HELLO_BYTES = 4096
_POLL_SECONDS = 0.1


class SlotEnded(PonderError):
    """A process ended, or did not connect in time."""


class SlotConnection:
    """Reserves a slot, starts the interpreter there, and waits until it has connected and proved its ticket."""

    def __init__(self, place: Place, argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        (self._slot,) = place.reserve(1, gpu=False, spread=True)
        self._socket: socket.socket | None = None
        try:
            with bind(place.host, 0) as listener:
                name, ticket = f"worker-{secrets.token_hex(4)}", secrets.token_hex(32)
                address = f"{place.host}:{listener.getsockname()[1]}"
                own = {ADDRESS_VARIABLE: address, NAME_VARIABLE: name, TICKET_VARIABLE: ticket}
                self.pid = self._slot.start(argv, {**environment, **own})
                self._socket = _accept(listener, self._slot, name, ticket, deadline)
        except BaseException:
            self.release()
            raise

    def fileno(self) -> int:
        """To read from and to write to."""
        assert self._socket is not None
        return self._socket.fileno()

    def kill(self) -> None:
        self._slot.send_signal(signal.SIGKILL)

    def how_it_ended(self, seconds: float) -> str | None:
        """None: it runs, after so many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self._slot.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return None if code is None else self._slot.lost_reason or how_it_ended(code)

    def read_output(self) -> bytes:
        """What it wrote to its standard output and error since the last call."""
        return b"".join(self._slot.read_output())

    def release(self) -> None:
        """Kill it, and give its room back."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._slot.release()


def _accept(listener: socket.socket, slot: Slot, name: str, ticket: str, deadline: float) -> socket.socket:
    """The connection of the process; strangers are turned away."""
    listener.listen()
    listener.settimeout(_POLL_SECONDS)
    while time.monotonic() < deadline:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if (code := slot.poll()) is not None:
                said = b"".join(slot.read_output())[-1000:].decode(errors="replace").strip()
                reason = slot.lost_reason or how_it_ended(code)
                raise SlotEnded(f"it ended before it connected ({reason}); it wrote last: {said}") from None
            continue
        connection.settimeout(min(HANDSHAKE_SECONDS, max(0.1, deadline - time.monotonic())))
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            mine = secrets.token_hex(16)
            _send(connection, {"nonce": mine})
            hello = _receive(connection)
            theirs = str(hello["nonce"])
            wanted = proof(ticket, "replica", mine, theirs)
            if hello["name"] == name and hmac.compare_digest(str(hello["proof"]), wanted):
                _send(connection, {"proof": proof(ticket, "learner", mine, theirs)})
                connection.settimeout(None)
                return connection
        connection.close()
    raise SlotEnded("it did not connect in time")


def join(environment: Mapping[str, str]) -> socket.socket:
    """In the process: connect to the one that started it."""
    host, _, port = environment[ADDRESS_VARIABLE].rpartition(":")
    connection = socket.create_connection((host, int(port)), HANDSHAKE_SECONDS)
    theirs, mine = str(_receive(connection)["nonce"]), secrets.token_hex(16)
    ticket = environment[TICKET_VARIABLE]
    own = proof(ticket, "replica", theirs, mine)
    _send(connection, {"name": environment[NAME_VARIABLE], "nonce": mine, "proof": own})
    if not hmac.compare_digest(str(_receive(connection)["proof"]), proof(ticket, "learner", theirs, mine)):
        raise SlotEnded(f"{host}:{port} is not the process that started this one")
    connection.settimeout(None)
    return connection


def is_placed() -> bool:
    """Whether this process was started in a slot, and is to connect."""
    return ADDRESS_VARIABLE in os.environ


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        more = connection.recv(1)  # not a byte of what follows
        if not more or len(line) > _MAX_HELLO_BYTES:
            raise OSError("the other side broke off")
        line += more
    message: dict[str, Any] = json.loads(line)
    return message
