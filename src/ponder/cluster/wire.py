"""Messages between a job and its processes: JSON with its length before it, and errors as JSON."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any

from ponder.errors import ModelError, PonderError, UsageError

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct(">Q")


async def read_frame(reader: asyncio.StreamReader, max_bytes: int = MAX_FRAME_BYTES) -> dict[str, Any] | None:
    """The next message; None: the other side is gone."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > max_bytes:
            raise ModelError(f"a message of {size:,} bytes is longer than the {max_bytes:,} that are allowed")
        message: dict[str, Any] = json.loads(await reader.readexactly(size))
        return message
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def frame(message: Mapping[str, Any]) -> bytes:
    payload = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(payload)) + payload


def error_to_json(error: Exception) -> dict[str, Any]:
    if isinstance(error, PonderError):
        return {"error": str(error), "type": type(error).__name__}
    return {"error": f"{type(error).__name__}: {error}", "type": ""}


def request_error(reply: Mapping[str, Any]) -> PonderError:
    """What a process refused, as the error that it would be in this process."""
    kind = UsageError if reply["type"] == "UsageError" else ModelError
    return kind(reply["error"])
