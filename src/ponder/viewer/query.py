"""Parameters of a request, each checked: what is no number is an error in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ponder.errors import UsageError

_MAX_INT_DIGITS = 15


class Query:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def names(self, name: str) -> list[str]:
        """A list with commas between."""
        return [each for each in self.text(name).split(",") if each]

    def whole(self, name: str, default: int, least: int = 0, most: int = 10**_MAX_INT_DIGITS) -> int:
        value = self.optional_whole(name)
        if value is None:
            return default
        if not least <= value <= most:
            raise UsageError(f"{name} is {value}; it is a number from {least} to {most}")
        return value

    def optional_whole(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_INT_DIGITS):
            raise UsageError(f"{name} is {text[:40]!r}; it is a whole number")
        return int(text)

    def optional_number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"{name} is {text[:40]!r}; it is a number")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.text(name) or default
        if value not in choices:
            raise UsageError(f"{name} is {value[:40]!r}; it is one of {', '.join(choices)}")
        return value
