"""Means over problems with several samples each, with clustered standard errors.

The standard error has two parts, reported separately: which problems were asked, and what was sampled on each. More
samples per problem reduce the second part only. Shapes: P problems, N samples of one, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, check_choice, to_floats
from ponder.measure.statistics.bootstrap import percentile_interval, resample_shapes
from ponder.measure.statistics.intervals import CONFIDENCE, constant_sample_interval, wilson

# What is drawn again: problems with all their samples (what other problems of this kind would give); the samples of
# these very problems; or both, each with its own share of the variance.
ResampleLevel = Literal["both", "problems", "samples"]


@dataclass(frozen=True, slots=True)
class ClusteredMean:
    """A mean over problems, with its 95 % interval and where its standard error comes from."""

    mean: float
    low: float
    high: float
    problems: int
    samples: int
    problem_standard_error: float  # the part of its standard error that only more problems lower
    sample_standard_error: (
        float | None
    )  # the part that more samples of each lower too; None: in the other, it cannot be told
    undecided: int = 0  # samples without a verdict: in no number
    problems_without_verdict: int = 0  # problems without any verdict: left out


def clustered_mean(groups: Sequence[Sequence[float | None]], level: float = CONFIDENCE) -> ClusteredMean:
    """The mean of the problems' means. A problem is one observation, whatever its samples; Student's interval."""
    known, undecided, empty = _drop_undecided(groups)
    value_P = np.array([g.mean() for g in known])
    size = len(known)
    inner = _sample_standard_error(known)
    if size < 2:
        raise UsageError("an interval over problems needs at least two problems with a verdict")
    error = float(value_P.std(ddof=1) / math.sqrt(size))
    mean = float(value_P.mean())
    if error == 0 and mean in (0.0, 1.0):  # all right or all wrong is not certain
        low, high = wilson(round(mean) * size, size, level)
    elif error == 0:
        low, high = constant_sample_interval(mean, size, level)
    else:
        from scipy.special import stdtrit

        half = float(stdtrit(size - 1, (1 + level) / 2)) * error
        low, high = mean - half, mean + half
    between = math.sqrt(max(error**2 - (inner or 0.0) ** 2, 0.0))
    return ClusteredMean(mean, low, high, size, sum(g.size for g in known), between, inner, undecided, empty)


def hierarchical_bootstrap(
    groups: Sequence[Sequence[float | None]],
    statistic: Callable[[FloatArray], FloatArray] | None = None,
    level_to_resample: ResampleLevel = "both",
    level: float = CONFIDENCE,
    resamples: int = 2000,
    seed: int = 0,
) -> ClusteredMean:
    """The mean over problems of any statistic of a problem's samples, with the percentile bootstrap's interval.

    `statistic` takes [..., N] outcomes and gives one number for each row; the mean where it is left out. Drawing
    problems and then samples again would count the sampling twice (a problem's own value already varies with what was
    sampled), so "both" shrinks the problems' values by as much as the samples' redrawing adds.
    """
    check_choice("level to draw again", level_to_resample, ResampleLevel)
    known, undecided, empty = _drop_undecided(groups)
    size = len(known)
    if size < 2:
        raise UsageError("an interval over problems needs at least two problems with a verdict")
    measure = statistic or (lambda x: x.mean(axis=-1))
    rng = np.random.default_rng(seed)
    value_P = np.array([float(measure(g)) for g in known])
    inner_PR = (
        np.zeros((size, 1))
        if level_to_resample == "problems"
        else _resampled_deviations(known, measure, min(resamples, 500), rng)
    )
    mean = float(value_P.mean())
    within, total = float(inner_PR.var(axis=1).mean()), float(value_P.var(ddof=1))
    fixed = level_to_resample == "samples"
    keep = 0.0 if fixed or total == 0 else math.sqrt(max(0.0, 1 - within / total))
    parts = []
    for shape in resample_shapes(resamples, size):
        drawn = np.broadcast_to(np.arange(size), shape) if fixed else rng.integers(size, size=shape)
        luck = inner_PR[drawn, rng.integers(inner_PR.shape[1], size=shape)]
        parts.append((keep * (value_P[drawn] - mean) + luck).mean(axis=1))
    # Redrawing problems varies less than drawing them, by one in so many.
    means_R = mean + np.concatenate(parts) * (1.0 if fixed else math.sqrt(size / (size - 1)))
    low, high = percentile_interval(means_R, (1 - level) / 2)
    if low == high and mean in (0.0, 1.0) and not fixed:
        low, high = wilson(round(mean) * size, size, level)
    elif low == high and not fixed:
        low, high = constant_sample_interval(mean, size, level)
    within_error = (
        None if level_to_resample == "problems" or all(g.size < 2 for g in known) else math.sqrt(within / size)
    )
    between = 0.0 if fixed else math.sqrt(max(total - within, 0.0) / size)
    drawn_in_all = sum(g.size for g in known)
    return ClusteredMean(mean, float(low), float(high), size, drawn_in_all, between, within_error, undecided, empty)


def _resampled_deviations(
    known: list[FloatArray], measure: Callable[[FloatArray], FloatArray], times: int, rng: np.random.Generator
) -> FloatArray:
    """How far each problem's value moves when its samples are drawn again, [P, R]."""
    out = np.zeros((len(known), times))
    for i, g in enumerate(known):
        if g.size < 2:
            continue  # one sample has no spread of its own; it is part of the problems'
        again = measure(g[rng.integers(g.size, size=(times, g.size))])
        out[i] = (again - again.mean()) * math.sqrt(g.size / (g.size - 1))  # redrawing varies less than drawing
    return out


def _sample_standard_error(known: list[FloatArray]) -> float | None:
    spread = [g.var(ddof=1) / g.size for g in known if g.size > 1]
    return math.sqrt(float(np.mean(spread)) / len(known)) if spread else None


def _drop_undecided(groups: Sequence[Sequence[float | None]]) -> tuple[list[FloatArray], int, int]:
    values = [to_floats(g) for g in groups]
    if any(np.isinf(g).any() for g in values):
        raise UsageError("an outcome is infinite, so a mean says nothing; leave it out, as None")
    known = [g[~np.isnan(g)] for g in values]
    undecided = sum(g.size for g in values) - sum(g.size for g in known)
    decided = [g for g in known if g.size]
    if not decided:
        raise UsageError("no problem has a sample with a verdict, so there is no mean")
    return decided, undecided, len(known) - len(decided)
