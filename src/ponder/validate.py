"""Checks of a setting's type and size. Each function returns the value as plain Python data, or raises an error that
names the setting and what it accepts.

A bool is not a number here: `True` for a count is a mistake, and libraries interpret it differently.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ponder.errors import UsageError

MAX_INT32 = 2**31 - 1  # the largest token id, and the largest count of tokens
MAX_ENTRIES = 1 << 20  # of a tuple in a setting
_MAX_EXACT_FLOAT_INT = 1 << 53  # integers up to here are exact as floats, and tensors accept no others
_MAX_REPR_CHARS = 80  # of a value in an error message


def check_int(name: str, value: Any, maximum: int) -> int:
    """An integer, at most `maximum`. The caller checks the lower bound."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value > maximum:
        raise UsageError(
            f"{name}: {short_repr(value)} is not a token id or a count: these are integers, at most {maximum}"
        )
    return int(value)


def check_number(name: str, value: Any) -> float:
    """A number. The caller checks its bounds, and so whether it is finite."""
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
    """A string that UTF-8 can encode: half of a surrogate pair is not a character."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {short_repr(value)}; it must be a string")
    plain = str.__str__(value)  # of a subclass too, whose methods may be overridden
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name} is {short_repr(plain)}, which has half of a surrogate pair") from None
    return plain


def check_question(question: Any) -> None:
    """A question: text that is not blank."""
    if not isinstance(question, str):
        raise UsageError(f"the question is {short_repr(question)}; it must be text")
    if not question.strip():
        raise UsageError("the question is empty")
    try:
        question.encode()
    except UnicodeEncodeError:
        raise UsageError("the question is not valid UTF-8") from None


def check_tuple(name: str, value: Any, entries: str) -> tuple[Any, ...]:
    """A tuple, from a finite collection that is neither a string nor a mapping."""
    if type(value) is tuple and len(value) <= MAX_ENTRIES:
        return value
    array = isinstance(value, np.ndarray) and value.ndim > 0
    if not array and not isinstance(value, tuple | list | range | set | frozenset):
        raise UsageError(f"{name} is {short_repr(value)}; it must be a tuple of {entries}")
    if len(value) > MAX_ENTRIES:
        raise UsageError(f"{name} has {len(value):,} entries; at most {MAX_ENTRIES:,} are accepted")
    return tuple(value.tolist() if array else value)


def check_pairs(name: str, value: Any, maximum: int) -> tuple[tuple[int, float], ...]:
    """A tuple of (token, number) pairs."""
    pairs = []
    for pair in check_tuple(name, value, "(token, number) pairs"):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"{name} has {short_repr(pair)}; it must be a tuple of (token, number) pairs")
        pairs.append((check_int(name, pair[0], maximum), check_number(name, pair[1])))
    return tuple(pairs)


def short_repr(value: Any) -> str:
    """A value for an error message: its repr, shortened; or the type's name if the repr fails."""
    try:
        return (
            f"{value!r:.{_MAX_REPR_CHARS}}" if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge number"
        )
    except Exception:  # an object's own repr may raise anything
        return f"a {type(value).__name__}"
