"""Outcomes of a step: the verdicts on the answers below it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class AnswerOutcomes:
    """Weighted verdicts on the answers below a step; unknown if none was judged."""

    total: float = 0.0
    weight: float = 0.0
    best: float | None = None

    @property
    def mean(self) -> float | None:
        return self.total / self.weight if self.weight else None

    def add(self, score: float, weight: float) -> AnswerOutcomes:
        best = score if self.best is None else max(self.best, score)
        return AnswerOutcomes(self.total + weight * score, self.weight + weight, best)


def answer_steps(trace: Trace) -> list[int]:
    """The steps that end an answer, pruned or not. Meta steps below such a step do not matter."""
    return [
        i
        for i, step in enumerate(trace.steps)
        if step.done
        and step.parent is not None
        and all(trace.steps[child].meta for child in trace.children(i))
        and not any(trace.steps[j].meta for j in trace.path(i))
    ]


def follows_original_prompt(trace: Trace, step: int) -> bool:
    """Does a step answer the question itself, and not a follow-up prompt that quotes other steps?"""
    return not trace.steps[trace.path(step)[0]].cites


def _is_rollout(trace: Trace, end: int) -> bool:
    return trace.steps[end].last and not trace.steps[end].visits


def outcomes_by_step(trace: Trace, scorer: str, visits: bool = False) -> list[AnswerOutcomes]:
    """One per step, from the answers below it in the tree; an answer is below itself.

    With `visits`, an answer counts as often as the search visited it, and the rollouts of a step count together as one
    visit. Without a search each answer counts once.
    """
    scores = {end: score for end in answer_steps(trace) if (score := trace.score(end, scorer)) is not None}
    searched = visits and any(step.visits for step in trace.steps)
    tries = Counter(trace.steps[end].parent for end in scores if _is_rollout(trace, end))
    outcomes = [AnswerOutcomes()] * len(trace.steps)
    for end, score in scores.items():
        step, weight = trace.steps[end], 1.0
        if searched:
            weight = 1 / tries[step.parent] if _is_rollout(trace, end) else float(step.visits)
        if weight:
            for i in trace.path(end):
                outcomes[i] = outcomes[i].add(score, weight)
    return outcomes
