"""Traverse: how many continuations each step gets: beams, REBASE, particles. Pure functions of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError

Rounding = Literal["paper", "code"]


def top_indices(scores: Sequence[float], count: int) -> list[int]:
    """The indices of the `count` highest scores, best first; of equals the first comes first."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:count]


def split_evenly(width: int, count: int) -> list[int]:
    """Split `width` into `count` parts; the first ones get the remainder."""
    return [width // count + (i < width % count) for i in range(count)] if count else []


def rebase_counts(
    scores: Sequence[float], width: int, temperature: float = 0.2, rounding: Rounding = "paper"
) -> list[int]:
    """REBASE (Wu et al. 2024): the softmax of the scores at a temperature allocates the width.

    "paper": W_j = Round(B exp(R_j/T) / sum_k exp(R_k/T)), halves up; the sum may then miss the width, and where all
    would be 0 the best gets one. "code": best first, each gets its share of what is left, rounded up, as in the
    authors' program; the sum is the width.
    """
    if not scores or width < 1:
        return [0] * len(scores)
    top = max(scores)
    share = [math.exp((s - top) / temperature) for s in scores]
    order = top_indices(scores, len(scores))
    if rounding == "paper":
        total = sum(share)
        counts = [math.floor(width * s / total + 0.5) for s in share]
        if not any(counts):
            counts[order[0]] = 1
        return counts
    counts, left = [0] * len(scores), width
    rest = list(accumulate(share[i] for i in reversed(order)))[::-1]  # the shares from here on
    for i, sum_of_rest in zip(order, rest, strict=True):
        counts[i] = math.ceil(left * share[i] / sum_of_rest - 1e-9) if sum_of_rest > 0 else 0
        left -= counts[i]
    return counts


ParticleWeighting = Literal["odds", "softmax", "share"]
SCORE_EPSILON = 1e-7  # scores are clipped to this distance from 0 and 1


def particle_weights(scores: Sequence[float], how: ParticleWeighting = "odds") -> NDArray[np.float64]:
    """Weights that sum to 1. "softmax": exp(r). "odds": r / (1 - r), the softmax of log-odds. "share": r itself."""
    r = np.asarray(scores, dtype=np.float64)
    if how == "softmax":
        weights = np.exp(r - r.max())
    else:
        if r.min() < 0 or r.max() > 1:
            raise UsageError(
                f"weight={how!r} takes scores between 0 and 1, and the guide gave {r.min():g} to {r.max():g}; "
                "take weight='softmax', or a guide that gives probabilities"
            )
        r = np.clip(r, SCORE_EPSILON, 1 - SCORE_EPSILON)
        weights = r / (1 - r) if how == "odds" else r
    out: NDArray[np.float64] = weights / weights.sum()
    return out


def multinomial_counts(weights: NDArray[np.float64], n: int, rng: np.random.Generator) -> list[int]:
    """How often each is sampled in n independent draws."""
    return [int(c) for c in rng.multinomial(n, weights)]


def systematic_counts(weights: NDArray[np.float64], n: int, rng: np.random.Generator) -> list[int]:
    """Systematic resampling: one random number places n equal strides; n w, rounded down or up."""
    places = (rng.random() + np.arange(n)) / n
    bounds = np.cumsum(weights)
    bounds[-1] = math.inf  # sums of floats may end below 1
    return [int(c) for c in np.bincount(np.searchsorted(bounds, places, side="right"), minlength=len(weights))]
