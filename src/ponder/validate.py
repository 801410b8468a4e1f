"""Is a setting of the type and size it must be? Each function returns the value as plain Python data, or raises one
sentence that names the setting and what it takes.

A bool is no number here: `True` where a count is meant is a mistake, and libraries take it for different things.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ponder.errors import UsageError

MAX_ENTRIES = 1 << 20  # of a tuple in a setting
_MAX_EXACT_FLOAT_INT = 1 << 53  # whole numbers up to here are floats too; tensors take no others
_MAX_REPR_CHARS = 80  # characters of a value in an error


def check_int(name: str, value: Any, maximum: int) -> int:
    """A whole number, at most `most`. Its lower bound is the setting's own."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value > maximum:
        raise UsageError(
            f"{name}: {short_repr(value)} is no token and no number of tokens: these are whole, at most {maximum}"
        )
    return int(value)


def check_number(name: str, value: Any) -> float:
    """A number; whether it is finite is for its bounds to say."""
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise UsageError(f"{name} is {short_repr(value)}; it must be a number")
    if isinstance(value, int) and abs(value) > _MAX_EXACT_FLOAT_INT:
        try:
            return float(value)
        except OverflowError:
            raise UsageError(f"{name} is {short_repr(value)}; it must be a number that a float can hold") from None
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value)


def check_text(name: str, value: Any) -> str:
    """A text that can be written in UTF-8: half of a surrogate pair is no character."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {short_repr(value)}; it must be a text")
    plain = str.__str__(value)  # of a subclass too, whose methods may do anything
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{name} is {short_repr(plain)}, which has half of a surrogate pair: no character"
            ) from None
    return plain


def check_tuple(name: str, value: Any, entries: str) -> tuple[Any, ...]:
    """A tuple, from whatever is no text, no mapping and has an end."""
    if type(value) is tuple and len(value) <= MAX_ENTRIES:
        return value
    array = isinstance(value, np.ndarray) and value.ndim > 0
    if not array and not isinstance(value, tuple | list | range | set | frozenset):
        raise UsageError(f"{name} is {short_repr(value)}; it is a tuple of {entries}")
    if len(value) > MAX_ENTRIES:
        raise UsageError(f"{name} has {len(value):,} entries; at most {MAX_ENTRIES:,} are taken")
    return tuple(value.tolist() if array else value)


def check_pairs(name: str, value: Any, maximum: int) -> tuple[tuple[int, float], ...]:
    """Of a token and a number."""
    out = []
    for pair in check_tuple(name, value, "(token, number) pairs"):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"{name} has {short_repr(pair)}; it is a tuple of (token, number) pairs")
        out.append((check_int(name, pair[0], maximum), check_number(name, pair[1])))
    return tuple(out)


def short_repr(value: Any) -> str:
    """A value in an error: its repr, cut short; a type's name where that has none."""
    try:
        return (
            f"{value!r:.{_MAX_REPR_CHARS}}" if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge number"
        )
    except Exception:  # an object's own repr may do anything
        return f"a {type(value).__name__}"
