"""A trace as one chain that grows at its end."""

from __future__ import annotations

from ponder.reason.operators.generate import add_completion
from ponder.types import Completion, Trace


def chain_end(trace: Trace, step: int) -> int:
    """The end of the chain that goes on from here."""
    while below := trace.children(step):
        step = below[0]
    return step


def end_if_sampled(trace: Trace, end: int) -> int | None:
    """The end of a chain as an answer; None where the policy has said nothing on the way there."""
    return end if any(trace.steps[i].sampled for i in trace.path(end)) else None


def add_unless_empty(trace: Trace, end: int, c: Completion) -> int:
    """The step that this becomes, or the one before it where nothing is left of it."""
    if len(c.token_ids):
        return add_completion(trace, end, c)
    trace.add_cost(c.cost)
    return end
