"""Evaluate: ask a scorer, and write what it says on the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ponder import user_calls
from ponder.errors import BudgetExhausted, Interrupted, PonderError
from ponder.protocols import Scorer
from ponder.types import Cost, Score, Trace

_NO_COST = Score(None).cost  # the one that a score without a cost has


async def evaluate(trace: Trace, steps: Sequence[int], scorer: Scorer) -> list[float | None]:
    """Each step's score; None where it is undecided. A scorer that breaks decides nothing, and stops nobody."""
    if not steps:
        return []
    scores = await _call_scorer(trace, steps, scorer)
    spent = Cost()
    for i, score in zip(steps, scores, strict=True):
        trace.steps[i].scores[scorer.name] = score
        if score.cost is not _NO_COST:
            spent += score.cost
    if spent != Cost():
        judging = spent.scorer_tokens or spent.prompt_tokens + spent.generated_tokens
        trace.add_cost(Cost(flops=spent.flops, seconds=spent.seconds, dollars=spent.dollars, scorer_tokens=judging))
    return [s.value for s in scores]


async def _call_scorer(trace: Trace, steps: Sequence[int], scorer: Scorer) -> list[Score]:
    try:
        with user_calls.track(f"the scorer {scorer.name}"):
            scores = list(await scorer(trace, steps))
    except (Interrupted, BudgetExhausted):
        raise
    except PonderError as error:  # it says itself what to do
        return [Score(None, str(error))] * len(steps)
    except Exception as error:
        return [Score(None, f"the scorer {scorer.name} crashed: {type(error).__name__}: {error}")] * len(steps)
    if len(scores) != len(steps):
        return [Score(None, f"{scorer.name} gave {len(scores)} scores for {len(steps)} steps")] * len(steps)
    if strange := [s for s in scores if not isinstance(s, Score)]:
        why = f"{scorer.name} gave a {type(strange[0]).__name__}, not a Score: write Score(value, reason)"
        return [Score(None, why)] * len(steps)
    return [s if s.value is None or type(s.value) is float else replace(s, value=float(s.value)) for s in scores]
