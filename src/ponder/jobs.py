"""A job as plain data and back. The object is its own config: frozen dataclasses, written with their type.

`decode(encode(job)) == job`, so the `job.json` of a run directory runs again. What it names is code, and may be a
stranger's: only ponder's own types are loaded, unless somebody trusts others (see `trust`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ponder.errors import PonderError, RunError, UsageError
from ponder.names import only_allowed, import_object
from ponder.trust import FLOAT_TYPE, Trust, check_trusted, external_code
from ponder.trust import TYPE_KEY as _TYPE

_LONGEST = 60  # characters of a value in a message


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
        return {_TYPE: FLOAT_TYPE, "value": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"a job can hold numbers, text, sequences and frozen dataclasses, not {type(value).__name__}")


def decode(data: Any, trust: Trust = ()) -> Any:
    """The object again. Sequences come back as tuples, as frozen dataclasses hold them.

    `trust`: names of code that the data may hold beside ponder's own types, as "module:object"; True: any. The whole is
    looked through before anything is imported.
    """
    with only_allowed(check_trusted(data, trust)):
        return _decoded(data)


def _decoded(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_decoded(v) for v in data)
    if not isinstance(data, dict):
        return data
    if data.get(_TYPE) == FLOAT_TYPE:
        return _number(data.get("value"))
    plain = {k: _decoded(v) for k, v in data.items() if k != _TYPE}
    if _TYPE not in data:
        return plain
    kind = import_object(str(data[_TYPE]))
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise RunError(f"job.json names {data[_TYPE]!r}, which is not a dataclass")
    try:
        return kind(**plain)
    except PonderError:
        raise
    except TypeError as why:
        raise RunError(f"job.json was written by another version: {data[_TYPE]} {why}") from None
    except (ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as why:
        raise RunError(f"job.json is damaged: {data[_TYPE]} cannot be made of what it says ({why})") from None


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        raise RunError(f"job.json is damaged: {text!r:.60} is no number") from None


def foreign_in(value: Any) -> list[str]:
    """The code that a job, or a part of one, names beside ponder's own: whoever made it trusts it."""
    try:
        return external_code(encode(value))
    except UsageError:  # no part of a saved job
        return []


def each_text(data: Any, change: Callable[[str], str]) -> Any:
    """The same encoded job, with every text in it changed."""
    if isinstance(data, dict):
        return {k: each_text(v, change) for k, v in data.items()}
    if isinstance(data, list):
        return [each_text(v, change) for v in data]
    return change(data) if isinstance(data, str) else data


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two encoded jobs differ, as `path: a -> b`. Things in a list go by their names, or by their places."""
    if a == b:
        return []
    if isinstance(a, dict) and isinstance(b, dict) and a.get(_TYPE) == b.get(_TYPE):  # of one type
        return _apart(a, b, path)
    if isinstance(a, list) and isinstance(b, list) and not (_brief(a) and _brief(b)):
        named, others = _named(a), _named(b)
        if named is None or others is None:
            return _apart(dict(enumerate(a)), dict(enumerate(b)), path)
        found = _apart(named, others, path)
        return found or [f"{path}: {', '.join(named)} -> {', '.join(others)}"]  # the same ones in another order
    return [f"{path or 'job'}: {' -> '.join(_shown(a, b))}"]


def _apart(a: Mapping[Any, Any], b: Mapping[Any, Any], path: str) -> list[str]:
    pairs = ((key, a.get(key, _ABSENT), b.get(key, _ABSENT)) for key in {**a, **b})
    return [d for key, x, y in pairs for d in differences(x, y, f"{path}.{key}" if path else str(key))]


def _named(values: list[Any]) -> dict[str, Any] | None:
    """By name, where each has one of its own."""
    names = [v.get("name") if isinstance(v, dict) else None for v in values]
    whole = all(isinstance(n, str) for n in names) and len(set(names)) == len(names)
    return dict(zip(map(str, names), values, strict=True)) if whole else None


def _brief(values: list[Any]) -> bool:
    """A few numbers or words, better seen side by side."""
    return len(repr(values)) <= _LONGEST and not any(isinstance(v, dict | list) for v in values)


def _shown(a: Any, b: Any) -> list[str]:
    """Both, short: of long texts the part in which they differ."""
    texts = [_text(value) for value in (a, b)]
    same = next((i for i, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), 0)
    begin = max(0, same - _LONGEST // 4) if max(map(len, texts)) > _LONGEST else 0
    return [_cut(text, begin if len(text) > _LONGEST else 0) for text in texts]


def _text(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get(_TYPE), str) and value[_TYPE] != FLOAT_TYPE:
        return value[_TYPE].rpartition(":")[2] + "(...)"
    return repr(value)


def _cut(text: str, begin: int) -> str:
    end = begin + _LONGEST
    return ("..." if begin else "") + text[begin:end] + ("..." if len(text) > end else "")
