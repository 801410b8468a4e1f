"""The scores of the steps on a path as one: how a process reward model rates a whole solution.

This is the only place that reduces. A scorer that rates steps (`scores_steps`) gives the raw score of every step on the
path (`Score.steps`), and as `Score.value` what it makes of them itself. Any other scorer (an outcome reward or value
model, GenRM, a likelihood, a verifier) judges the path up to a step as a whole: its score at the end is the path's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Scorer
from ponder.types import Trace

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
    """The score of the path to a step: reduced from its steps' raw scores, or the scorer's word on it as a whole."""
    found = trace.steps[step].scores.get(scorer)
    if found is None or found.value is None:
        return None
    return reduce_scores(found.steps, how) if found.steps else found.value


def scores_steps(scorer: Scorer) -> bool:
    """Does it give a score to each step of a path, or one to the path as a whole?"""
    return bool(getattr(scorer, "scores_steps", False))
