"""Evaluate: store a scorer's scores on the steps; reduce step scores to a path score; value a step by rollouts.

`reduce_scores` is the only place that reduces. A scorer that scores steps (`scores_steps`) gives the raw score of every
step on the path (`Score.steps`), and as `Score.value` its own reduction. Any other scorer (an outcome reward or value
model, GenRM, a likelihood, a verifier) scores the path up to a step as a whole: its score at the end is the path's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ponder import user_calls
from ponder.errors import BudgetExhausted, Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.cut import WHOLE_ANSWER
from ponder.reason.operators.generate import chain_end, expand, prune, prune_undecided
from ponder.types import Cost, Sampling, Score, Trace
from ponder.user_errors import describe_error

Reduction = Literal["min", "product", "last", "mean"]
REDUCTIONS: dict[Reduction, Callable[[Sequence[float]], float]] = {
    "min": min,
    "product": math.prod,
    "last": lambda steps: steps[-1],
    "mean": lambda steps: sum(steps) / len(steps),
}


def reduce_scores(steps: Sequence[float], how: Reduction) -> float:
    """A path's score from those of its steps."""
    if how not in REDUCTIONS:
        raise UnknownName("reduction of step scores", how, REDUCTIONS)
    if not steps:
        raise UsageError("a path without steps has no score")
    return float(REDUCTIONS[how](steps))


def path_score(trace: Trace, step: int, scorer: str, how: Reduction) -> float | None:
    """The score of the path to a step: reduced from step scores, or the scorer's score of the whole path."""
    score = trace.steps[step].scores.get(scorer)
    if score is None or score.value is None:
        return None
    return reduce_scores(score.steps, how) if score.steps else score.value


def scores_steps(scorer: Scorer) -> bool:
    """Does the scorer score each step of a path, or only the path as a whole?"""
    return bool(getattr(scorer, "scores_steps", False))


_NO_COST = Score(None).cost  # the default cost of a score


async def evaluate(trace: Trace, steps: Sequence[int], scorer: Scorer) -> list[float | None]:
    """Score the steps; None where undecided. A scorer that crashes leaves its steps undecided and stops nothing."""
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
    except PonderError as error:  # its message says what to do
        return [Score(None, str(error))] * len(steps)
    except (Exception, SystemExit) as error:
        return [Score(None, f"the scorer {scorer.name} crashed: {describe_error(error)}")] * len(steps)
    if len(scores) != len(steps):
        return [Score(None, f"{scorer.name} gave {len(scores)} scores for {len(steps)} steps")] * len(steps)
    if strange := [s for s in scores if not isinstance(s, Score)]:
        why = f"{scorer.name} gave a {type(strange[0]).__name__}, not a Score: write Score(value, reason)"
        return [Score(None, why)] * len(steps)
    return [s if s.value is None or type(s.value) is float else replace(s, value=float(s.value)) for s in scores]


def rollout_answers(trace: Trace, step: int) -> list[int]:
    """The whole answers that were sampled from a step to evaluate it."""
    first = [k for k in trace.children(step) if trace.steps[k].last and not trace.steps[k].pruned]
    return [chain_end(trace, k) for k in first]


@dataclass(frozen=True, slots=True)
class StepValue:
    """(1 - w) v + w z with w = `rollout_weight`, v the guide's score of the step, and z its mean score of the answers
    sampled from there (AlphaGo, Silver et al. 2016); v alone without rollouts, and for an answer.

    `two_player`: a score is for the player who made the step, and the other player starts a rollout.
    """

    rollouts: int = 0
    rollout_weight: float = 1.0
    two_player: bool = False

    def value(self, trace: Trace, step: int, guide: str) -> float | None:
        """The value of a step; None if unknown."""
        v = trace.score(step, guide)
        if not self.rollouts or trace.steps[step].done:
            return v
        ends = [s for k in rollout_answers(trace, step) if (s := trace.score(k, guide)) is not None]
        if not ends or (v is None and self.rollout_weight < 1):
            return None
        z = sum(ends) / len(ends) * (-1 if self.two_player else 1)
        return z if v is None or self.rollout_weight == 1 else (1 - self.rollout_weight) * v + self.rollout_weight * z

    async def evaluate(self, trace: Trace, steps: Sequence[int], policy: Policy, guide: Scorer, how: Sampling) -> None:
        """Sample the missing rollouts and score them; prune a step whose value stays unknown."""
        onward = [i for i in steps if self.rollouts and not trace.steps[i].done]
        scored = [i for i in steps if not self.rollouts or self.rollout_weight < 1 or trace.steps[i].done]
        missing = {
            i: n for i in onward if (n := self.rollouts - sum(trace.steps[k].last for k in trace.children(i))) > 0
        }
        if missing:
            try:
                await expand(trace, [*missing], policy, how, [*missing.values()], cut=WHOLE_ANSWER, last=True)
            except (Interrupted, BudgetExhausted):
                raise
            except PonderError:  # each failed and is pruned with its reason
                pass
        ends = [k for i in onward for k in rollout_answers(trace, i)]
        await evaluate(trace, [i for i in (*scored, *ends) if trace.score(i, guide.name) is None], guide)
        prune_undecided(trace, [i for i in scored if not trace.steps[i].pruned], guide.name)
        for i in onward:
            if self.value(trace, i, guide.name) is None:
                why = [trace.steps[k].scores[guide.name].reason for k in rollout_answers(trace, i)]
                prune(trace, [i], f"no rollout was scored: {why[0] if why else 'none was sampled'}")
