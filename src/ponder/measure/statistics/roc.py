"""AUROC of a score as a predictor of correctness, ties counting half, with its interval: over all samples, or within
problems, which is what choosing among the answers to one problem depends on.

Shapes: N samples, R right ones, W wrong ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray
from ponder.measure.statistics.bootstrap import percentile_interval, resampled_indices
from ponder.measure.statistics.calibration import check_scores_and_outcomes
from ponder.measure.statistics.intervals import CONFIDENCE


@dataclass(frozen=True, slots=True)
class AurocInterval:
    """The chance that a right sample scores above a wrong one, ties counting half, with its 95 % interval."""

    area: float
    low: float
    high: float
    right: int
    wrong: int

    def __str__(self) -> str:
        return f"{self.area:.3f} [{self.low:.3f}, {self.high:.3f}] ({self.right} right, {self.wrong} wrong)"


def auroc(
    scores: Sequence[float | None],
    right: Sequence[float | None],
    problems: Sequence[Hashable] | None = None,
    level: float = CONFIDENCE,
    resamples: int = 500,
    seed: int = 0,
) -> AurocInterval:
    """The area and its interval: DeLong's (1988) on the logit scale, for samples that are independent.

    Samples of one problem are not: name each sample's problem, and whole problems are drawn again instead.
    """
    score_N, right_N = check_scores_and_outcomes(scores, right)
    good = right_N == 1
    if not good.any() or good.all():
        raise UsageError("all samples are right, or all wrong: there is nothing to tell apart")
    area, variances = _delong(score_N[good], score_N[~good])
    if problems is None:
        low, high = _logit_interval(area, variances, (int(good.sum()), int((~good).sum())), level)
    else:
        if len(problems) != score_N.size:
            raise UsageError(f"name the problem of each sample: got {len(problems)} names for {score_N.size} samples")
        low, high = _bootstrap_over_problems(area, score_N, good, problems, level, resamples, seed)
    return AurocInterval(area, low, high, int(good.sum()), int((~good).sum()))


@dataclass(frozen=True, slots=True)
class WithinAuroc:
    """The mean over problems of the chance that a right answer scores above a wrong one to the same problem."""

    area: float
    low: float
    high: float
    problems: int  # that have right and wrong answers: no other counts

    def __str__(self) -> str:
        return f"{self.area:.3f} [{self.low:.3f}, {self.high:.3f}] ({self.problems} problems with both)"


def auroc_within_problems(
    scores: Sequence[float | None],
    right: Sequence[float | None],
    problems: Sequence[Hashable],
    level: float = CONFIDENCE,
    resamples: int = 500,
    seed: int = 0,
) -> WithinAuroc:
    """Pairs of a right and a wrong answer to one problem alone, so that a score which only tells easy problems from
    hard ones has 1/2. Each problem counts alike; the interval is a bootstrap over problems.
    """
    score_N, right_N = check_scores_and_outcomes(scores, right)
    if len(problems) != score_N.size:
        raise UsageError(f"name the problem of each sample: got {len(problems)} names for {score_N.size} samples")
    groups = [m for m in _members(problems) if 0 < (right_N[m] == 1).sum() < m.size]
    if not groups:
        raise UsageError("no problem has right and wrong answers: there is nothing to tell apart within one")
    area_P = np.array([_area(score_N[m], right_N[m] == 1) for m in groups])
    area = float(area_P.mean())
    if len(groups) < 2:
        return WithinAuroc(area, 0.0, 1.0, 1)
    rng = np.random.default_rng(seed)
    drawn = [
        float(area_P[chosen].mean())
        for chosen in itertools.chain.from_iterable(resampled_indices(len(groups), resamples, rng))
    ]
    low, high = percentile_interval(drawn, (1 - level) / 2)
    if area_P.min() == area_P.max():  # redrawing brings nothing new
        low, high = _bounds(area, len(groups), level)
    return WithinAuroc(area, float(low), float(high), len(groups))


def _members(problems: Sequence[Hashable]) -> list[np.ndarray]:
    """The samples of each problem."""
    members: dict[Hashable, list[int]] = {}
    for i, problem in enumerate(problems):
        members.setdefault(problem, []).append(i)
    return [np.array(m) for m in members.values()]


def _area(score_N: FloatArray, good: np.ndarray) -> float:
    """From ranks: (sum of the right ones' ranks - R (R + 1) / 2) / (R W)."""
    r = int(good.sum())
    return float((_ranks(score_N)[good].sum() - r * (r + 1) / 2) / (r * (good.size - r)))


def _ranks(values: FloatArray) -> FloatArray:
    """From 1; equal values share the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((count.cumsum() - (count - 1) / 2)[inverse])


def _delong(score_R: FloatArray, score_W: FloatArray) -> tuple[float, tuple[float, float]]:
    """The area and DeLong's variance, from right and from wrong samples: how each one's share of won pairs varies."""
    all_ranks = _ranks(np.concatenate([score_R, score_W]))
    won_R = (all_ranks[: score_R.size] - _ranks(score_R)) / score_W.size
    won_W = 1 - (all_ranks[score_R.size :] - _ranks(score_W)) / score_R.size
    right, wrong = (float(won.var(ddof=1) / won.size) if won.size > 1 else math.nan for won in (won_R, won_W))
    return float(won_R.mean()), (right, wrong)


def _logit_interval(
    area: float, variances: tuple[float, float], sizes: tuple[int, int], level: float
) -> tuple[float, float]:
    """Student's, with Satterthwaite's degrees of freedom: two variances are estimated, from few samples each."""
    variance = sum(variances)
    if math.isnan(variance):  # one sample of a kind: its share of won pairs has no spread to measure
        return 0.0, 1.0
    if area in (0.0, 1.0):  # no pair went wrong, which so many independent pairs of a worse score also bring
        return _bounds(area, min(sizes), level)
    if variance == 0:  # every sample wins the same share, as where all tie
        return 0.0, 1.0
    from scipy.special import stdtrit

    freedom = variance**2 / sum(v**2 / (n - 1) for v, n in zip(variances, sizes, strict=True))
    t = float(stdtrit(freedom, (1 + level) / 2))
    middle, half = math.log(area / (1 - area)), t * math.sqrt(variance) / (area * (1 - area))
    return 1 / (1 + math.exp(half - middle)), 1 / (1 + math.exp(-half - middle))


def _bounds(area: float, pairs: int, level: float) -> tuple[float, float]:
    bound = float(((1 - level) / 2) ** (1 / pairs))
    return (bound, 1.0) if area == 1 else (0.0, 1 - bound) if area == 0 else (0.0, 1.0)


def _bootstrap_over_problems(
    area: float, score_N: FloatArray, good: np.ndarray, problems: Sequence[Hashable], level: float, resamples: int,
    seed: int,
) -> tuple[float, float]:  # fmt: skip
    groups = _members(problems)
    if len(groups) < 2:
        raise UsageError("all samples are of one problem; an interval over problems needs at least two")
    rng = np.random.default_rng(seed)
    areas = []
    for chosen in itertools.chain.from_iterable(resampled_indices(len(groups), resamples, rng)):
        drawn = np.concatenate([groups[i] for i in chosen])
        if 0 < good[drawn].sum() < drawn.size:
            areas.append(_area(score_N[drawn], good[drawn]))
    if area in (0.0, 1.0) or not areas:  # no redrawing brings a pair that went wrong: bounds, as if a problem were one
        sizes = [len({p for p, g in zip(problems, good, strict=True) if g == kind}) for kind in (True, False)]
        return _bounds(area, min(sizes), level)
    low, high = percentile_interval(areas, (1 - level) / 2)
    return float(low), float(high)
