"""Evaluate: ask a scorer, and write what it says on the steps."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.protocols import Scorer
from ponder.types import Trace


async def evaluate(trace: Trace, steps: Sequence[int], scorer: Scorer) -> None:
    scores = await scorer(trace, steps)
    for i, score in zip(steps, scores, strict=True):
        trace.steps[i].scores[scorer.name] = score
