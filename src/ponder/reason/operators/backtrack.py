"""Backtrack: up to the nearest thought from which there is another way."""

from __future__ import annotations

from collections.abc import Callable

from ponder.types import Trace


def backtrack(trace: Trace, step: int, is_open: Callable[[int], bool]) -> int | None:
    """The nearest open step on the way back from here, itself included; None where every way was tried."""
    at: int | None = step
    while at is not None and not is_open(at):
        at = trace.steps[at].parent
    return at
