"""Samples of problems as arrays for counting votes: answers, scores and values.

Shapes: P problems, N samples of a problem, L different answers of a problem.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray, check_choice, to_floats

# What an unscored sample does: stop with an error, or never get chosen while others are.
MissingScores = Literal["error", "abstain"]


@dataclass(frozen=True, slots=True)
class VoteArrays:
    """The samples of one problem, in the order they came."""

    label_N: IntArray  # which answer, numbered by first appearance; -1: no answer, or no score: no vote
    weight_N: FloatArray
    value_L: FloatArray  # of each answer: how right it is; NaN where no verifier could judge any sample that gave it
    no_answer_value: float  # worth of no answer: wrong; NaN where no verifier could judge any sample of the problem

    @property
    def size(self) -> int:
        return self.label_N.size


def to_vote_arrays(
    answers: Sequence[Hashable | None],
    right: Sequence[float | None],
    scores: Sequence[float | None] | None = None,
    missing: MissingScores = "error",
) -> VoteArrays:
    """Who voted for what. An answer of None does not vote. Without scores every vote counts 1.

    What an answer is worth is the mean over the samples that gave it and were judged: 1 or 0 where the verifier
    judges equal answers equally.
    """
    if len(answers) != len(right):
        raise UsageError(f"every answer takes one outcome; got {len(answers)} answers and {len(right)} outcomes")
    right_N, weight_N = check_outcomes_and_scores(right, [1.0] * len(answers) if scores is None else scores, missing)
    numbered: dict[Hashable, int] = {}
    try:
        label_N = np.array([-1 if a is None or a != a else numbered.setdefault(a, len(numbered)) for a in answers])
    except TypeError as error:
        raise UsageError(
            f"an answer cannot be compared with others ({error}); give canonical texts or numbers"
        ) from None
    decided = (label_N >= 0) & ~np.isnan(right_N)
    total_L = np.bincount(label_N[decided], weights=right_N[decided], minlength=len(numbered))
    with np.errstate(invalid="ignore"):
        worth_L = total_L / np.bincount(label_N[decided], minlength=len(numbered))
    silence = math.nan if np.isnan(right_N).all() else 0.0
    return VoteArrays(np.where(np.isnan(weight_N), -1, label_N), np.nan_to_num(weight_N), worth_L, silence)


def check_outcomes_and_scores(
    right: Sequence[float | None], scores: Sequence[float | None], missing: MissingScores
) -> tuple[FloatArray, FloatArray]:
    """Outcomes and scores as numbers, NaN where there is none."""
    check_choice("way with missing scores", missing, MissingScores)
    if len(right) != len(scores):
        raise UsageError(f"every sample takes one score; got {len(right)} outcomes and {len(scores)} scores")
    if len(right) == 0:
        raise UsageError("a problem without samples has no votes; leave it out, or sample it")
    right_N, scores_N = to_floats(right), to_floats(scores)
    if np.any((right_N < 0) | (right_N > 1)):
        raise UsageError("an outcome lies between 0 (wrong) and 1 (right), or is None where nobody could judge it")
    if missing == "error" and (lost := int(np.isnan(scores_N).sum())):
        raise UsageError(
            f"{lost} of {scores_N.size} samples have no score; score them, or say missing='abstain' to go on without"
        )
    if np.any(np.isinf(scores_N)):
        raise UsageError("a score is infinite; a vote needs finite numbers")
    return right_N, scores_N
