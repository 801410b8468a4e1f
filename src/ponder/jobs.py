"""A job as plain data and back. The object is its own config: frozen dataclasses, written with their type.

`decode(encode(job)) == job`, so the `job.json` of a run directory runs again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ponder.errors import RunError, UsageError
from ponder.names import load

_TYPE = "is"  # the key under which a dataclass's own type stands


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def encode(value: Any) -> Any:
    """Plain JSON data."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise UsageError(f"{kind.__name__} must be a frozen dataclass to be part of a job")
        named = {f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init}
        return {_TYPE: f"{kind.__module__}:{kind.__qualname__}", **named}
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such number
        return {_TYPE: "float", "value": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"a job can hold numbers, text, sequences and frozen dataclasses, not {type(value).__name__}")


def decode(data: Any) -> Any:
    """The object again. Sequences come back as tuples, as frozen dataclasses hold them."""
    if isinstance(data, list):
        return tuple(decode(v) for v in data)
    if not isinstance(data, dict):
        return data
    if data.get(_TYPE) == "float":
        return float(data["value"])
    plain = {k: decode(v) for k, v in data.items() if k != _TYPE}
    if _TYPE not in data:
        return plain
    kind = load(str(data[_TYPE]))
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise RunError(f"job.json names {data[_TYPE]!r}, which is not a dataclass")
    try:
        return kind(**plain)
    except TypeError as why:
        raise RunError(f"job.json was written by another version: {data[_TYPE]} {why}") from None


def each_text(data: Any, change: Callable[[str], str]) -> Any:
    """The same encoded job, with every text in it changed."""
    if isinstance(data, dict):
        return {k: each_text(v, change) for k, v in data.items()}
    if isinstance(data, list):
        return [each_text(v, change) for v in data]
    return change(data) if isinstance(data, str) else data


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two encoded jobs differ, as `path: a -> b`."""
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = {k: (a.get(k, _ABSENT), b.get(k, _ABSENT)) for k in {**a, **b}}
        return [d for k, (x, y) in pairs.items() for d in differences(x, y, f"{path}.{k}" if path else k)]
    return [] if a == b else [f"{path}: {a!r} -> {b!r}"]
