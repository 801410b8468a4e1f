"""Give a strategy other bounds: how many answers, branches or simulations, and how it samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from math import gcd
from typing import Any

from ponder.reason.inner_strategies import inner_strategies

COUNT_FIELDS = ("n", "simulations")  # how much a strategy does: samples, beams, branches, simulations


def has_field(strategy: Any, name: str) -> bool:
    return any(f.name == name and f.init for f in fields(strategy))


def with_effort_count(strategy: Any, count: int, given: Collection[str]) -> Any:
    """A beam search with this many beams in all, and a beam width that divides them; any other strategy as it is."""
    if has_field(strategy, "beam_width") and has_field(strategy, "n") and "beam_width" not in given:
        return replace(strategy, beam_width=gcd(count, strategy.beam_width), n=count)
    return strategy


def with_limits(strategy: Any, count: int | None, sampling: Mapping[str, Any]) -> Any:
    """The strategy, and those inside it, with this count (None: its own) and these sampling settings."""
    changes: dict[str, Any] = {}
    if count is not None and (name := next((c for c in COUNT_FIELDS if has_field(strategy, c)), None)):
        changes[name] = count
    if has_field(strategy, "sampling"):
        changes["sampling"] = replace(strategy.sampling, **sampling)
    for name, inner in inner_strategies(strategy).items():
        own_count = name == "cheap" or has_field(strategy, "trees")  # a forest counts its trees
        changes[name] = with_limits(inner, None if own_count else count, sampling)
    return replace(strategy, **changes)
