"""Two systems on the same problems, each with one or many samples per problem: difference, interval, test."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, to_floats
from ponder.measure.statistics.intervals import CONFIDENCE, FEW_PROBLEMS, constant_sample_interval

MAX_EXACT_DIFFERENCES = 16  # differences that are not 0: up to here all signs are tried


@dataclass(frozen=True, slots=True)
class PairedMean:
    """First minus second, as the mean over problems of the difference of their means, with Student's 95 % interval."""

    mean: float
    low: float
    high: float
    p_value: float  # the sign-flip test: were the two alike, how often would they part this far?
    problems: int
    clusters: int  # the problems, or the groups they were said to come from
    undecided: int = 0  # problems that one of them left without a verdict: in neither

    def __str__(self) -> str:
        few = f"; fewer than {FEW_PROBLEMS} problems" if self.problems < FEW_PROBLEMS else ""
        lost = f"; {self.undecided} undecided" if self.undecided else ""
        gap = f"{100 * self.mean:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        return f"{gap} (paired over {self.problems} problems, p = {self.p_value:.3g}{lost}{few})"


def paired_means(
    first: Sequence[Sequence[float | None]],
    second: Sequence[Sequence[float | None]],
    clusters: Sequence[Hashable] | None = None,
    level: float = CONFIDENCE,
    flips: int = 10_000,
    seed: int = 0,
) -> PairedMean:
    """Compare samples of the same problems. A problem is one observation, whatever its samples; problems that come
    from one source (a passage, a template) are not independent either: name each problem's cluster."""
    if len(first) != len(second):
        raise UsageError(f"paired systems need the same problems; one has {len(first)}, the other {len(second)}")
    a, b = _problem_means(first), _problem_means(second)
    both_known = ~np.isnan(a - b)
    gap = (a - b)[both_known]
    if clusters is not None:
        if len(clusters) != len(first):
            raise UsageError(f"name the cluster of each problem: got {len(clusters)} names for {len(first)} problems")
        labels = [c for c, known in zip(clusters, both_known, strict=True) if known]
    else:
        labels = list(range(gap.size))
    if len(set(labels)) < 2:
        raise UsageError("a paired interval needs two problems (or clusters) that both systems were judged on")
    index = {c: i for i, c in enumerate(dict.fromkeys(labels))}
    place = [index[c] for c in labels]
    mean = float(gap.mean())
    sums = np.bincount(place, weights=gap).astype(np.float64)
    sizes = np.bincount(place)
    off = sums - mean * sizes  # how far each cluster pulls
    count = sums.size
    error = math.sqrt(count / (count - 1) * float(off @ off)) / gap.size
    from scipy.special import stdtrit

    half = float(stdtrit(count - 1, (1 + level) / 2)) * error
    low, high = (mean - half, mean + half) if half else constant_sample_interval(mean, count, level, least=-1.0)
    p = sign_flip_test(sums, flips, seed)
    return PairedMean(mean, low, high, p, int(gap.size), int(count), int((~both_known).sum()))


def sign_flip_test(differences: Sequence[float] | FloatArray, flips: int = 10_000, seed: int = 0) -> float:
    """How often sums of these differences, each with a random sign, are as far from 0 as theirs: exact for few."""
    gap = np.asarray(differences, dtype=float)
    gap = gap[gap != 0]
    if gap.size == 0:
        return 1.0
    bound = abs(gap.sum()) - 1e-9 * np.abs(gap).sum()
    if gap.size <= MAX_EXACT_DIFFERENCES:
        every = 1 - 2 * (np.arange(2**gap.size)[:, None] >> np.arange(gap.size) & 1)
        return float(np.mean(np.abs(every @ gap) >= bound))
    rng = np.random.default_rng(seed)
    far, rows = 0, max(1, 4_000_000 // gap.size)
    for done in range(0, flips, rows):
        signs = rng.integers(2, size=(min(rows, flips - done), gap.size), dtype=np.int8) * 2.0 - 1
        far += int(np.sum(np.abs(signs @ gap) >= bound))
    return (far + 1) / (flips + 1)  # the signs that were found count as one of the flips


def _problem_means(groups: Sequence[Sequence[float | None]]) -> FloatArray:
    out = []
    for g in groups:
        known = to_floats(g)
        known = known[~np.isnan(known)]
        out.append(float(known.mean()) if known.size else math.nan)
    return np.array(out)
