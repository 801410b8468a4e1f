"""Evaluate by comparing: which of two answers is the better one, and what many such comparisons make of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WinProbabilities = NDArray[np.float64]  # [i, j]: the chance that i is better than j; NaN where nobody compared


def enhanced_borda_count(wins: WinProbabilities) -> list[float]:
    """Enhanced Borda count (LLaMA-Berry, Zhang et al. 2024), from 0 for the last to 1 for the first.

    i beats j where it is likelier the better one, or beats one that beats j (Floyd and Warshall's closure). Who beats
    more comes first; of equals, who was the likelier winner on the average. One alone is worth 1/2.
    """
    count = len(wins)
    if count < 2:
        return [0.5] * count
    known = ~np.isnan(wins)
    beats = np.where(known, wins, 0.5) > 0.5
    for k in range(count):
        beats |= beats[:, k : k + 1] & beats[k : k + 1, :]
    np.fill_diagonal(beats, False)
    compared = known & ~np.eye(count, dtype=bool)
    chance = np.where(compared, wins, 0.0).sum(axis=1) / np.maximum(1, compared.sum(axis=1))
    marks = [(int(b), float(c)) for b, c in zip(beats.sum(axis=1), chance, strict=True)]
    below = [sum(other < own for other in marks) for own in marks]
    equal = [sum(other == own for other in marks) - 1 for own in marks]
    return [(b + e / 2) / (count - 1) for b, e in zip(below, equal, strict=True)]
