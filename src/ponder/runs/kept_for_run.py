"""Models that a run loads on demand and uses at every step, such as a judge: loaded once, forgotten when the run ends.

The stages of a recipe are runs, one after the other, and the next one needs the memory. Of two runs at the same time in
one process, the one that ends makes the other load its model again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import TypeVar

R = TypeVar("R")

_forget: list[Callable[[], None]] = []


def kept_for_run(most: int) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The function's newest results, so many at most, are kept until a run of this process ends."""

    def keep(load: Callable[..., R]) -> Callable[..., R]:
        cached = lru_cache(maxsize=most)(load)
        _forget.append(cached.cache_clear)

        @wraps(load)
        def call(*arguments: Hashable) -> R:
            return cached(*arguments)

        return call

    return keep


def forget_kept() -> None:
    """A run has ended."""
    for forget in _forget:
        forget()
