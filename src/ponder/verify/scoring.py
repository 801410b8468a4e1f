"""How a judgement of one text becomes a Scorer's judgement of many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponder.types import Score, Trace


def score_each(trace: Trace, steps: Sequence[int], judge: Callable[[str], Score]) -> list[Score]:
    """Judge what was written up to each step. A judge that breaks is undecided, never a silent 0."""
    return [_safely(judge, trace.text(step)) for step in steps]


def _safely(judge: Callable[[str], Score], text: str) -> Score:
    try:
        return judge(text)
    except Exception as error:  # a grader must never raise into the training loop
        return Score(None, f"crashed: {type(error).__name__}: {error}")
