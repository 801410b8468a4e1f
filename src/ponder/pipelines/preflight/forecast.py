"""Forecasts of a run from a few samples and steps: groups without a gradient, and time. Pure functions.

A group of n equal rewards has no gradient. With pass rate p that happens with probability p^n + (1 - p)^n. Pass rates
differ between problems; they are assumed to follow a Beta distribution. Its posterior is computed on a grid of shapes
from the observed samples. Shapes: S grid points, K problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ponder.train.credit import are_equal, unify_equal

Array = NDArray[np.float64]

GROUP_SIZES = (2, 4, 8, 16, 32, 64)  # group sizes to compare
CREDIBLE_MASS = 0.9  # the probability of a reported range


def expected_dead_share(a: float, b: float, n: int) -> float:
    """Probability that n rewards of 0 or 1 are equal where the pass rate is p ~ Beta(a, b): E[p^n] + E[(1 - p)^n],
    products of (a + i) / (a + b + i)."""
    i = np.arange(n)
    return float(np.prod((a + i) / (a + b + i)) + np.prod((b + i) / (a + b + i)))


@dataclass(frozen=True)
class PassRates:
    """The distribution of pass rates over problems: Beta shapes and their posterior weights."""

    a_S: Array
    b_S: Array
    weight_S: Array

    def mean(self) -> float:
        """The mean pass rate."""
        return float(self.weight_S @ (self.a_S / (self.a_S + self.b_S)))

    def dead_share(self, n: int) -> tuple[float, float, float]:
        """Share of groups of n without a gradient on new problems: expected, and a 90 % range."""
        share_S = np.array([expected_dead_share(a, b, n) for a, b in zip(self.a_S, self.b_S, strict=True)])
        order = np.argsort(share_S)
        below = np.cumsum(self.weight_S[order])
        low, high = (
            share_S[order][np.searchsorted(below, q)] for q in ((1 - CREDIBLE_MASS) / 2, (1 + CREDIBLE_MASS) / 2)
        )
        return float(self.weight_S @ share_S), float(low), float(high)


def fit_pass_rates(tries: Sequence[int], passes: Sequence[int]) -> PassRates:
    """The posterior from each problem's tries and passes, with a uniform prior on a grid: means evenly spaced in
    log-odds from 1/1000 to 999/1000, concentrations a + b evenly spaced in log from 1/4 to 64.
    """
    means = 1 / (1 + np.exp(-np.linspace(-math.log(999), math.log(999), 41)))
    sizes = np.geomspace(0.25, 64, 17)
    a_S, b_S = (np.outer(x, sizes).ravel() for x in (means, 1 - means))
    log_S = np.zeros(len(a_S))
    for t, p in zip(tries, passes, strict=True):
        log_S += _log_rising_factorial(a_S, p) + _log_rising_factorial(b_S, t - p) - _log_rising_factorial(a_S + b_S, t)
    weight_S = np.exp(log_S - log_S.max())
    return PassRates(a_S, b_S, weight_S / weight_S.sum())


def _log_rising_factorial(x_S: Array, count: int) -> Array:
    """log of x (x + 1) ... (x + count - 1)."""
    return np.log(x_S[:, None] + np.arange(count)).sum(-1)


@dataclass(frozen=True)
class GroupForecast:
    """The pass rate of the samples, and the share of groups without a gradient at several group sizes."""

    n: int
    pass_rate: float  # of the samples
    observed: float  # share of the scan's own groups without a gradient
    expected: float
    low: float
    high: float
    by_n: dict[int, float]  # expected share at other sizes


def forecast_groups(rewards: Sequence[Sequence[float]]) -> GroupForecast | None:
    """A forecast from the rewards of each problem; None if there are none, or more than two distinct rewards.

    The higher of two rewards is a pass; a single reward is a pass from 1 on.
    """
    groups = [g for g in rewards if g]
    kinds = sorted(set(unify_equal(r for g in groups for r in g)))
    if not groups or len(kinds) > 2:
        return None
    best = kinds[-1] if len(kinds) == 2 else max(kinds[-1], 1.0)
    passes = [sum(are_equal((r, best)) for r in g) for g in groups]
    n = max(map(len, groups))
    spread = fit_pass_rates([len(g) for g in groups], passes)
    expected, low, high = spread.dead_share(n)
    by_n = {k: spread.dead_share(k)[0] for k in sorted({*GROUP_SIZES, n})}
    observed = sum(map(are_equal, groups)) / len(groups)
    return GroupForecast(n, sum(passes) / sum(map(len, groups)), observed, expected, low, high, by_n)


def smallest_group_size(forecast: GroupForecast, most: float) -> int | None:
    """The smallest group size whose expected share of groups without a gradient is at most `most`."""
    return next((n for n, share in sorted(forecast.by_n.items()) if share <= most), None)


@dataclass(frozen=True)
class RunTimeForecast:
    """Seconds of a whole run, from its last measured step, with a lower and an upper bound.

    `completions_may_grow`: the upper bound assumes longer completions; `had_gradient`: every step had a gradient.
    """

    expected: float
    low: float
    high: float
    completions_may_grow: bool
    had_gradient: bool


def forecast_run_time(
    steps: int, sample: Sequence[float], learn: Sequence[float], live: Sequence[float], full: float, growth: float
) -> RunTimeForecast:
    """From the seconds of a run's first steps. The very first is slower than others: memory is allocated then.

    `live`: the share of groups with a gradient in each step; `full`: the seconds to learn from all groups. `growth`:
    by what factor completions can become longer. The upper bound assumes both from the start.
    """
    both = [s + t for s, t in zip(sample, learn, strict=True)]
    more = [full * (1 - share) for share in live]
    high = steps * max(b + m for b, m in zip(both, more, strict=True)) * max(1.0, growth)
    return RunTimeForecast(steps * both[-1], steps * min(both), high, growth > 1, all(share > 0 for share in live))
