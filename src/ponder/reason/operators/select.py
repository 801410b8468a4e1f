"""Traverse: choose among the steps of a trace by majority or by score; backtrack to an open step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponder.reason.operators import vote
from ponder.types import Trace

AnswerExtractor = Callable[[str], str | None]  # the canonical final answer in a text; None where there is none


def majority_step(trace: Trace, steps: Sequence[int], read: AnswerExtractor) -> int | None:
    """The first step that gives the most frequent answer; None where no step gives any. First seen wins ties."""
    answers = [read(trace.text(i)) for i in steps]
    winner = vote.majority_answer(answers)
    return None if winner is None else steps[answers.index(winner)]


def set_answer(trace: Trace, step: int | None) -> None:
    """Choose a step as the answer. One that was pruned is none: why it was is then why there is none."""
    pruned = trace.steps[step].pruned if step is not None else ""
    trace.chosen = None if pruned else step
    trace.failed = trace.failed or pruned


def best_step(trace: Trace, steps: Sequence[int], scorer: str) -> int | None:
    """The step with the highest score, the first of equals; an undecided score never wins."""
    return vote.best_answer(steps, [trace.score(i, scorer) for i in steps])


def backtrack(trace: Trace, step: int, is_open: Callable[[int], bool]) -> int | None:
    """The nearest open step on the way back from here, itself included; None where every way was tried."""
    at: int | None = step
    while at is not None and not is_open(at):
        at = trace.steps[at].parent
    return at
