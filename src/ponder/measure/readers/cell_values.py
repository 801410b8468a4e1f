"""Parse a cell of a log as a verdict, a number or a text; an empty cell is None."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from ponder.errors import UsageError

RIGHT_WORDS = frozenset(
    ("true", "t", "yes", "1", "1.0", "correct", "right", "pass", "passed", "success", "succeeded", "solved", "accepted")
)
WRONG_WORDS = frozenset(
    ("false", "f", "no", "0", "0.0", "incorrect", "wrong", "fail", "failed", "failure", "unsolved", "rejected")
)
EMPTY_WORDS = frozenset(("", "nan", "none", "null", "n/a", "na", "undecided", "unknown"))


class NotAVerdict(UsageError):
    """A value that is neither right nor wrong."""


def parse_verdict(value: Any, right: frozenset[str] = frozenset()) -> float | None:
    """1, 0, a grade between them, or None where the cell is empty. `right`: the values that mean right, if not the
    usual ones; all others then mean wrong."""
    value = _decimal_to_float(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if right:
        word = str(value).strip().lower()
        return (
            None
            if word in EMPTY_WORDS
            else float(word in right or _number_or_text(word) in {_number_or_text(r) for r in right})
        )
    if isinstance(value, str):
        return _word_verdict(value)
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise NotAVerdict(f"{value!r} is neither right nor wrong")


def _word_verdict(text: str) -> float | None:
    word = text.strip().lower()
    if word in EMPTY_WORDS:
        return None
    if word in RIGHT_WORDS:
        return 1.0
    if word in WRONG_WORDS or word.startswith("failed:"):
        return 0.0
    number = _number_or_text(word)
    if isinstance(number, float) and 0 <= number <= 1:
        return number
    raise NotAVerdict(f"{text[:40]!r} is neither right nor wrong")


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _decimal_to_float(value: Any) -> Any:
    """Tables of databases hold decimals."""
    return float(value) if isinstance(value, Decimal) else value


def parse_cell_number(value: Any) -> float | None:
    """A finite number, or None where the cell is empty."""
    value = _decimal_to_float(value)
    if isinstance(value, str):
        if value.strip().lower() in EMPTY_WORDS:
            return None
        value = float(value)
    if value is None or isinstance(value, bool):
        return None if value is None else float(value)
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return float(value) if math.isfinite(value) else None


def parse_cell_count(value: Any) -> int:
    number = parse_cell_number(value)
    if number is None or number != int(number) or number < 0:
        raise ValueError(f"{value!r} is no count")
    return int(number)


def parse_cell_text(value: Any) -> str | None:
    """An answer as votes count it."""
    value = _decimal_to_float(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, list | dict) else str(value)


def parse_text_list(value: Any) -> Any:
    """A list that was written as text: "[True, False]", "[1 0 1]". Anything else as it is."""
    if not (isinstance(value, str) and value[:1] == "[" and value[-1:] == "]"):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            items = read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return list(items) if isinstance(items, list | tuple) else value
    parts = value[1:-1].split()
    return parts if parts and all(p.strip("'\"").lower() in RIGHT_WORDS | WRONG_WORDS for p in parts) else value


def all_cells_parse(cells: Iterable[Any], read: Callable[[Any], Any]) -> bool:
    """Can every cell be read so, and does at least one say something?"""
    any_parsed = False
    for cell in cells:
        try:
            any_parsed |= read(cell) is not None
        except (ValueError, TypeError, OverflowError, UsageError):
            return False
    return any_parsed
