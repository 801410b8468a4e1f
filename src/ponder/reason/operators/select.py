"""Traverse: choose among the steps of a trace by majority or by score; backtrack to an open step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ponder.reason import answer_extraction
from ponder.reason.operators import vote
from ponder.types import Trace

AnswerExtractor = Callable[[str], str | None]  # text to canonical final answer, or None


def majority_step(trace: Trace, steps: Sequence[int], read: AnswerExtractor) -> int | None:
    """The first step with the most frequent answer; None if no step has one. Ties go to the answer seen first."""
    answers = [read(trace.text(i)) for i in steps]
    winner = vote.majority_answer(answers)
    return None if winner is None else steps[answers.index(winner)]


def set_answer(trace: Trace, step: int | None) -> None:
    """Choose a step as the answer. A pruned step is none: its reason becomes the trace's."""
    pruned = trace.steps[step].pruned if step is not None else ""
    trace.chosen = None if pruned else step
    trace.failed = trace.failed or pruned


def best_step(trace: Trace, steps: Sequence[int], scorer: str) -> int | None:
    """The step with the highest score, the first of equals; an undecided one never wins, and one that states no answer
    only where none states any."""
    rated = [i for i in steps if trace.score(i, scorer) is not None]
    able = [rated[k] for k in vote.stated_answers([answer_extraction.answer_of_step(trace, i) for i in rated])]
    return vote.best_answer(able, [trace.score(i, scorer) for i in able])


def backtrack(trace: Trace, step: int, is_open: Callable[[int], bool]) -> int | None:
    """The nearest open step on the path back to the root, this one included; None if there is none."""
    at: int | None = step
    while at is not None and not is_open(at):
        at = trace.steps[at].parent
    return at
