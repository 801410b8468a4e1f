"""Settings that are numbers are finite, wherever infinity would mean nothing.

Infinity is a meaning where it is a setting's default, where a class names the setting in `UNBOUNDED`, and for limits:
a score that nothing reaches, or a budget without end. NaN never is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ponder.errors import UsageError

UNBOUNDED_FIELDS = ("threshold", "least", "bar", "margin", "enough", "seconds", "wall", "timeout", "dollars")


def check_finite(thing: Any) -> None:
    """Refuse a job, or a part of one, with a number in it that is not finite, and say where it stands."""
    _check(thing, type(thing).__name__, False)


def _check(value: Any, path: str, infinite: bool) -> None:
    if isinstance(value, float):
        if math.isnan(value) or (math.isinf(value) and not infinite):
            raise UsageError(f"{path} is {value}; it must be a finite number")
    elif is_dataclass(value) and not isinstance(value, type):
        free = (*UNBOUNDED_FIELDS, *getattr(value, "UNBOUNDED", ()))
        for f in fields(value):
            usual = isinstance(f.default, float) and math.isinf(f.default)
            _check(getattr(value, f.name, None), f"{path}.{f.name}", usual or f.name in free)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check(inner, f"{path}[{key!r}]", infinite)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _check(inner, f"{path}[{i}]", infinite)
