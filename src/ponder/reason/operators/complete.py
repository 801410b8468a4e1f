"""Complete: write on what a budget cut off, so that more budget later goes on with it."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.errors import BudgetExhausted, Interrupted, PonderError
from ponder.protocols import Policy
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators.generate import add_completion, sample_continuations
from ponder.reason.operators.worth import WHOLE_ANSWER
from ponder.types import Completion, Sampling, Trace


async def resume_truncated(trace: Trace, answers: Sequence[int], policy: Policy, sampling: Sampling) -> None:
    """Go on with the answers that ended before their `max_tokens` and not by themselves. Where that is impossible (the
    context is full), they stay as they are."""

    async def more(step: int) -> list[Completion]:
        try:
            return await sample_continuations(trace, step, policy, sampling, 1, WHOLE_ANSWER)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError:
            return []

    short = [i for i in answers if _is_truncated(trace, i, sampling)]
    found, spent = await gather_within_budget(*(more(i) for i in short))
    for step, drawn in zip(short, found, strict=True):
        for c in drawn or ():
            if len(c.token_ids):
                trace.steps[step].last = False
                add_completion(trace, step, c, last=True)
            else:
                trace.add_cost(c.cost)
    if spent is not None:
        raise spent


def _is_truncated(trace: Trace, end: int, sampling: Sampling) -> bool:
    step = trace.steps[end]
    if step.stop != "length" or step.pruned or trace.children(end):
        return False
    return sum(len(trace.steps[i].token_ids) for i in trace.path(end)[1:]) < sampling.max_tokens
