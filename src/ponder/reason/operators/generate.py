"""Structure: grow the trace by what a policy writes."""

from __future__ import annotations

from ponder.protocols import Policy
from ponder.types import Sampling, Step, Trace


async def generate(
    trace: Trace, parent: int, policy: Policy, sampling: Sampling, n: int = 1, last: bool = False
) -> list[int]:
    """n continuations of a step, as its children; what they cost goes on the trace. `last`: they are answers."""
    fresh = []
    for c in await policy.generate(trace.token_ids(parent), sampling, n):
        trace.spend(c.cost)
        step = Step(parent, c.text, c.token_ids, c.logprobs, c.stop, c.version, notes=dict(c.notes), last=last)
        fresh.append(trace.add(step))
    return fresh
