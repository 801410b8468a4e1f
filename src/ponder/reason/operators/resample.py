"""Particles by weight: log-weights of scores, and draws with replacement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError

ParticleWeighting = Literal["odds", "softmax", "share"]
SCORE_EPSILON = 1e-7  # scores this near to 0 and 1 count as this far from them


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
    """How often each is drawn in n independent draws."""
    return [int(c) for c in rng.multinomial(n, weights)]


def systematic_counts(weights: NDArray[np.float64], n: int, rng: np.random.Generator) -> list[int]:
    """How often each is drawn where one random number places n equal strides: n w, rounded down or up."""
    places = (rng.random() + np.arange(n)) / n
    bounds = np.cumsum(weights)
    bounds[-1] = math.inf  # sums of floats may end below 1
    return [int(c) for c in np.bincount(np.searchsorted(bounds, places, side="right"), minlength=len(weights))]
