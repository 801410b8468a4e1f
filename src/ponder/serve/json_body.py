"""Bounded JSON bodies, and readers of their fields.

A field of the wrong type or out of range is a 400 that names it. A field that nobody read is a 400 too, unless it is
bookkeeping: ignoring it silently would change the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ponder.serve.errors import ApiError, invalid, unknown_field
from ponder.validate import short_repr

T = TypeVar("T", bound=str)

MAX_BODY_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_VALUES = 2_000_000  # brackets and commas, and so at most twice as many numbers, strings, lists and objects

# Fields that do not change the answer.
BOOKKEEPING = frozenset(
    (
        "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
        "request_id", "background", "verbosity", "moderation",
    )
)  # fmt: skip


def parse_body(data: bytes) -> dict[str, Any]:
    """The JSON object of a body, or a 400 that says what is wrong."""
    _check_shape(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise invalid("the body is not UTF-8") from None
    try:
        body = _DECODER.decode(text)
    except (ValueError, RecursionError) as reason:
        raise invalid(f"the body is not valid JSON: {reason!s:.200}") from None
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    return body


def _check_shape(data: bytes) -> None:
    """Raise where a body has too many values, or values too deep in others, by a look at its bytes, before the
    values are built. What is wrong with a text that is not JSON, the parser says."""
    if len(data) <= MAX_VALUES and data.count(b"[") + data.count(b"{") <= MAX_DEPTH:  # nearly all
        return
    if b"\\" in data:  # only in strings: leave out escaped backslashes and quotes, so that all quotes bound strings
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    array = np.frombuffer(data, np.uint8)
    outside = np.cumsum(array == ord('"'), dtype=np.uint8) % 2 == 0  # only whether the count is odd matters
    kinds = _KINDS[array[outside]]
    if int(np.count_nonzero(kinds)) > MAX_VALUES:
        raise invalid(f"the body has more than {MAX_VALUES:,} values")
    brackets = kinds[(kinds == _OPEN) | (kinds == _CLOSE)]
    if len(brackets) and int(np.cumsum(brackets, dtype=np.int32).max()) > MAX_DEPTH:
        raise invalid(f"the body is nested more than {MAX_DEPTH} deep")


_OPEN, _CLOSE, _COMMA = 1, -1, 2
_KINDS = np.zeros(256, np.int8)
for _char, _kind in (("[", _OPEN), ("{", _OPEN), ("]", _CLOSE), ("}", _CLOSE), (",", _COMMA)):
    _KINDS[ord(_char)] = _kind


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the key {key!r:.80} stands there twice")
        out[key] = value
    return out


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)  # made once


class Fields:
    """The fields of a JSON object. Each reader returns the value, or the default where the field is absent or null."""

    def __init__(self, body: Mapping[str, Any], path: str = "") -> None:
        self.body, self.path = body, path
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.body.get(name) is not None

    def name(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def error(self, field: str, expected: str) -> ApiError:
        name = self.name(field)
        return invalid(f"{name} is {short_repr(self.body.get(field))}; it must be {expected}", name, "invalid_value")

    def raw(self, field: str) -> Any:
        """Any value, as it is."""
        self._read.add(field)
        return self.body.get(field)

    def text(self, field: str, default: str | None = None, max_chars: int = MAX_BODY_BYTES) -> str | None:
        if (value := self.body.get(field)) is None:
            return default
        self._read.add(field)
        if not isinstance(value, str) or len(value) > max_chars:
            raise self.error(field, f"a string of at most {max_chars:,} characters")
        return self._unicode(field, value)

    def required_text(self, field: str, max_chars: int = MAX_BODY_BYTES) -> str:
        value = self.text(field, None, max_chars)
        if value is None:
            raise invalid(f"{self.name(field)} is missing", self.name(field), "missing_required_parameter")
        return value

    def integer(self, field: str, default: int | None, low: int, high: int) -> int | None:
        if (value := self.body.get(field)) is None:
            return default
        self._read.add(field)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(field, f"an integer from {low} to {high}")
        return value

    def number(self, field: str, default: float | None, low: float, high: float) -> float | None:
        if (value := self.body.get(field)) is None:
            return default
        self._read.add(field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(field, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, field: str, default: bool = False) -> bool:
        if (value := self.body.get(field)) is None:
            return default
        self._read.add(field)
        if not isinstance(value, bool):
            raise self.error(field, "true or false")
        return value

    def choice(self, field: str, choices: Sequence[T], default: T | None = None) -> T | None:
        if (value := self.body.get(field)) is None:
            return default
        self._read.add(field)
        for known in choices:
            if value == known:
                return known
        raise self.error(field, f"one of {', '.join(choices)}")

    def object(self, field: str) -> Fields | None:
        """An object's own fields."""
        if (value := self.body.get(field)) is None:
            return None
        self._read.add(field)
        if not isinstance(value, dict):
            raise self.error(field, "an object")
        return Fields(value, self.name(field))

    def array(self, field: str, max_items: int) -> list[Any] | None:
        if (value := self.body.get(field)) is None:
            return None
        self._read.add(field)
        if not isinstance(value, list) or len(value) > max_items:
            raise self.error(field, f"a list of at most {max_items:,} entries")
        return value

    def objects(self, field: str, max_items: int) -> list[Fields] | None:
        """A list of objects."""
        values = self.array(field, max_items)
        if values is None:
            return None
        if wrong := [i for i, value in enumerate(values) if not isinstance(value, dict)]:
            name = f"{self.name(field)}[{wrong[0]}]"
            raise invalid(f"{name} must be an object", name, "invalid_type")
        return [Fields(value, f"{self.name(field)}[{i}]") for i, value in enumerate(values)]

    def strings(self, field: str, max_items: int, max_chars: int) -> tuple[str, ...]:
        """A string, or a list of strings."""
        if (value := self.body.get(field)) is None:
            return ()
        self._read.add(field)
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or len(values) > max_items:
            raise self.error(field, f"a string, or a list of at most {max_items} strings")
        if not all(isinstance(one, str) and len(one) <= max_chars for one in values):
            raise self.error(field, f"a string, or a list of strings, each of at most {max_chars:,} characters")
        return tuple(self._unicode(field, one) for one in values)

    def token_ids(self, field: str, max_items: int = MAX_VALUES) -> tuple[int, ...] | None:
        if (value := self.body.get(field)) is None:
            return None
        self._read.add(field)
        if not isinstance(value, list) or len(value) > max_items:
            raise self.error(field, f"a list of at most {max_items:,} token ids")
        if not all(type(one) is int and 0 <= one < 1 << 31 for one in value):
            raise self.error(field, "a list of token ids")
        return tuple(value)

    def ignore(self, *fields: str) -> None:
        """Fields that are accepted and change nothing."""
        self._read.update(fields)

    def refuse_unread(self, ignored: Iterable[str] = BOOKKEEPING) -> None:
        """Raise if there is a field that nobody read, and that is not null."""
        for field in self.body:
            if field not in self._read and field not in ignored and self.body[field] is not None:
                raise unknown_field(self.name(field))

    def _unicode(self, field: str, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.error(field, "text without half of a surrogate pair") from None
        return value
