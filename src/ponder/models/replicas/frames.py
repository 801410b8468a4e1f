"""Messages between a learner and its replicas: JSON with its length before it, and requests and replies as JSON."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from ponder.errors import ModelError
from ponder.models.base_policy import RawCompletion
from ponder.types import Completion, Cost, Sampling, ids

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct(">Q")


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; None: the other side is gone."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > MAX_FRAME_BYTES:
            raise ModelError(f"a message of {size:,} bytes is longer than the {MAX_FRAME_BYTES:,} that are allowed")
        message: dict[str, Any] = json.loads(await reader.readexactly(size))
        return message
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def frame(message: Mapping[str, Any]) -> bytes:
    payload = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(payload)) + payload


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    plain = Sampling()
    named = ((f.name, getattr(sampling, f.name)) for f in fields(sampling))
    return {name: value for name, value in named if value != getattr(plain, name)}


def sampling_from_json(data: Mapping[str, Any]) -> Sampling:
    return Sampling(**{name: _as_tuples(value) for name, value in data.items()})


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def completion_to_json(completion: Completion) -> dict[str, Any]:
    """Everything but the text, which the reader decodes from the tokens."""
    top = completion.top_logprobs
    return {
        "token_ids": completion.token_ids.tolist(),
        "logprobs": completion.logprobs.tolist(),
        "stop": completion.stop,
        "version": completion.version,
        "cost": asdict(completion.cost),
        "notes": {name: values.tolist() for name, values in completion.notes.items()},
        "top": None if top is None else [top[0].tolist(), top[1].tolist()],
    }


def completion_from_json(data: Mapping[str, Any]) -> tuple[RawCompletion, int]:
    """A completion without its text, and the version of its first token."""
    top = data["top"]
    rows = [] if top is None else [(ids(i), np.asarray(x, np.float32)) for i, x in zip(*top, strict=True)]
    raw = RawCompletion(data["token_ids"], data["logprobs"], data["stop"], Cost(**data["cost"]), rows, data["notes"])
    return raw, data["version"]
