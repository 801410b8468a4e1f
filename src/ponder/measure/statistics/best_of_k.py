"""best-of-k: how often the highest scored of k samples is right, exactly, from n samples with scores.

All subsets of k count alike, in every order, and of equal scores the first seen wins. So each sample of the highest
score in a subset is chosen equally often, and the subset's highest is known from counts alone (order statistics).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, IntArray
from ponder.measure.statistics.passk import check_counts, log_no_hit_probability
from ponder.measure.statistics.vote_arrays import MissingScores, check_outcomes_and_scores


def best_at_k(
    right: Sequence[float | None], scores: Sequence[float | None], k: ArrayLike, missing: MissingScores = "error"
) -> FloatArray:
    """The chance that the best scored of k samples is right, for each k; also the mean of graded outcomes.

    An unscored sample is an error, or, where `missing` is "abstain", is never chosen; a subset in which nobody is
    scored gives no answer, which is wrong. NaN where the choice may fall on a sample that no verifier could judge.
    """
    right_N, scores_N = check_outcomes_and_scores(right, scores, missing)
    n = right_N.size
    _, _, k_K = check_counts(n, 0, k)
    _require_k_samples(n, k_K)
    votes = ~np.isnan(scores_N)
    value_G, inverse = np.unique(scores_N[votes], return_inverse=True)
    if value_G.size == 0 or np.isnan(right_N).all():
        return np.full(k_K.shape, math.nan if np.isnan(right_N).all() else 0.0)
    size_G = np.bincount(inverse)
    with np.errstate(invalid="ignore"):
        mean_G = np.bincount(inverse, weights=right_N[votes]) / size_G  # NaN where one of equals is undecided
    above_G = size_G[::-1].cumsum()[::-1] - size_G  # samples that score higher
    shape = (-1,) + (1,) * k_K.ndim
    # The highest is of group g: none above it is drawn, and not none of it.
    none_above = np.exp(log_no_hit_probability(n, above_G.reshape(shape), k_K))
    none_of_it = np.exp(log_no_hit_probability(n, (above_G + size_G).reshape(shape), k_K))
    chance_GK = none_above - none_of_it
    return np.asarray(np.where(chance_GK > 0, chance_GK * mean_G.reshape(shape), 0.0).sum(axis=0))


def _require_k_samples(n: int, k_K: IntArray) -> None:
    if (k := int(k_K.max(initial=1))) > n:
        raise UsageError(f"best-of-{k} needs {k} samples; there are {n}. Sample more, or ask for a smaller k")
