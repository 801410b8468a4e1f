"""A job as JSON and back. The object is its own config: frozen dataclasses, written with their types.

`decode(encode(job)) == job`, so the `job.json` of a run directory can be run again, unless the job holds code that no
name leads to (see `unsaved_code`). It names code, and may come from a stranger: only ponder's own types are imported,
unless the user trusts others (see `trust`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ponder.errors import PonderError, RunError, UsageError
from ponder.registry import import_object, is_ponder_module, only_allowed, ponder_object
from ponder.runs.trust import FLOAT_TYPE, Trust, check_trusted, external_code
from ponder.runs.trust import TYPE_KEY as _TYPE_KEY
from ponder.runs.unsaved_code import UNSAVED_TYPE, describe_callable, unsaved_code_error
from ponder.user_modules import module_of

_MAX_SHOWN_CHARS = 60  # characters of a value in a message


class _Missing:
    def __repr__(self) -> str:
        return "absent"


_MISSING = _Missing()


def encode(value: Any) -> Any:
    """Plain JSON data."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise UsageError(f"{kind.__name__} must be a frozen dataclass to be part of a job")
        named = {f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init}
        return {_TYPE_KEY: f"{module_of(kind)}:{kind.__qualname__}", **named}
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such number
        return {_TYPE_KEY: FLOAT_TYPE, "value": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value) and not isinstance(value, type):  # no name leads to it: see unsaved_code
        return {_TYPE_KEY: UNSAVED_TYPE, **describe_callable(value)}
    raise UsageError(f"a job can hold numbers, text, sequences and frozen dataclasses, not {type(value).__name__}")


def decode(data: Any, trust: Trust = ()) -> Any:
    """The object that was encoded. Sequences become tuples, as frozen dataclasses hold them.

    `trust`: names of code that the data may use besides ponder's own types, as "module:object"; True: any. All of the
    data is checked before anything is imported.
    """
    with only_allowed(check_trusted(data, trust)):
        return _decode(data)


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_decode(v) for v in data)
    if not isinstance(data, dict):
        return data
    if data.get(_TYPE_KEY) == FLOAT_TYPE:
        return _parse_float(data.get("value"))
    if data.get(_TYPE_KEY) == UNSAVED_TYPE:
        raise unsaved_code_error([str(data.get("name", "a function"))])
    plain = {k: _decode(v) for k, v in data.items() if k != _TYPE_KEY}
    if _TYPE_KEY not in data:
        return plain
    name = str(data[_TYPE_KEY])
    if is_ponder_module(name.partition(":")[0]) and ponder_object(name) is None:
        raise _other_version_error(name, "no such type")
    kind = import_object(name)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise RunError(f"job.json names {data[_TYPE_KEY]!r}, which is not a dataclass")
    try:
        return kind(**plain)
    except PonderError:
        raise
    except TypeError as why:
        raise _other_version_error(name, str(why)) from None
    except (ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as why:
        raise RunError(f"job.json is damaged: {data[_TYPE_KEY]} cannot be made of what it says ({why})") from None


def _other_version_error(name: str, why: str) -> RunError:
    """The one error for a run directory whose job this version cannot build."""
    return RunError(
        f"job.json was written by another version of ponder ({name}: {why}): start a new run, or use the version in "
        "environment.json"
    )


def _parse_float(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        raise RunError(f"job.json is damaged: {text!r:.60} is no number") from None


def external_code_in(value: Any) -> list[str]:
    """The code outside ponder that a job, or a part of one, names. The user who built it trusts it."""
    try:
        return external_code(encode(value))
    except UsageError:  # no part of a saved job
        return []


def map_strings(data: Any, change: Callable[[str], str]) -> Any:
    """The encoded job with every string in it changed."""
    if isinstance(data, dict):
        return {k: map_strings(v, change) for k, v in data.items()}
    if isinstance(data, list):
        return [map_strings(v, change) for v in data]
    return change(data) if isinstance(data, str) else data


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two encoded jobs differ, as `path: a -> b`. Items of a list go by their names, or by their places."""
    if a == b:
        return []
    if isinstance(a, dict) and isinstance(b, dict) and a.get(_TYPE_KEY) == b.get(_TYPE_KEY):  # of one type
        return _field_differences(a, b, path)
    if isinstance(a, list) and isinstance(b, list) and not (_is_short_list(a) and _is_short_list(b)):
        named, others = _by_name(a), _by_name(b)
        if named is None or others is None:
            return _field_differences(dict(enumerate(a)), dict(enumerate(b)), path)
        changes = _field_differences(named, others, path)
        return changes or [f"{path}: {', '.join(named)} -> {', '.join(others)}"]  # the same ones in another order
    return [f"{path or 'job'}: {' -> '.join(_excerpts(a, b))}"]


def _field_differences(a: Mapping[Any, Any], b: Mapping[Any, Any], path: str) -> list[str]:
    pairs = ((key, a.get(key, _MISSING), b.get(key, _MISSING)) for key in {**a, **b})
    return [d for key, x, y in pairs for d in differences(x, y, f"{path}.{key}" if path else str(key))]


def _by_name(values: list[Any]) -> dict[str, Any] | None:
    """The items by name, if each has a name of its own."""
    names = [v.get("name") if isinstance(v, dict) else None for v in values]
    unique = all(isinstance(n, str) for n in names) and len(set(names)) == len(names)
    return dict(zip(map(str, names), values, strict=True)) if unique else None


def _is_short_list(values: list[Any]) -> bool:
    """A few numbers or words, which are easier to read side by side."""
    return len(repr(values)) <= _MAX_SHOWN_CHARS and not any(isinstance(v, dict | list) for v in values)


def _excerpts(a: Any, b: Any) -> list[str]:
    """Both values, shortened: of long texts the part in which they differ."""
    texts = [_text(value) for value in (a, b)]
    same = next((i for i, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), 0)
    begin = max(0, same - _MAX_SHOWN_CHARS // 4) if max(map(len, texts)) > _MAX_SHOWN_CHARS else 0
    return [_excerpt(text, begin if len(text) > _MAX_SHOWN_CHARS else 0) for text in texts]


def _text(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get(_TYPE_KEY), str) and value[_TYPE_KEY] != FLOAT_TYPE:
        return value[_TYPE_KEY].rpartition(":")[2] + "(...)"
    return repr(value)


def _excerpt(text: str, begin: int) -> str:
    end = begin + _MAX_SHOWN_CHARS
    return ("..." if begin else "") + text[begin:end] + ("..." if len(text) > end else "")
