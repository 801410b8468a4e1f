"""A trace as one chain that grows at its end."""

from __future__ import annotations

from ponder.reason.operators.generate import add
from ponder.types import Completion, Trace


def tip(trace: Trace, step: int) -> int:
    """The end of the chain that goes on from here."""
    while below := trace.children(step):
        step = below[0]
    return step


def spoken(trace: Trace, end: int) -> int | None:
    """The end of a chain as an answer; None where the policy has said nothing on the way there."""
    return end if any(trace.steps[i].sampled for i in trace.path(end)) else None


def added(trace: Trace, end: int, c: Completion) -> int:
    """The step that this becomes, or the one before it where nothing is left of it."""
    if len(c.token_ids):
        return add(trace, end, c)
    trace.spend(c.cost)
    return end
