"""Strategies that run inside another: a forest's trees, the two of a cascade, the search of rStar consistency."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from inspect import iscoroutinefunction
from typing import Any


def inner_strategies(strategy: Any) -> dict[str, Any]:
    """The strategies inside a strategy, by field name: dataclasses that are called asynchronously."""
    if not is_dataclass(strategy):
        return {}
    values = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.init}
    return {
        k: v for k, v in values.items() if is_dataclass(v) and callable(v) and iscoroutinefunction(type(v).__call__)
    }
