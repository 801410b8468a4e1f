"""Fits recover what the data were made of, their intervals cover it, and scipy's optimiser finds nothing better."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import curve_fit

from ponder.errors import UsageError
from ponder.measure import (
    ChinchillaLaw,
    compute_shift,
    extrapolate_coverage,
    fit_chinchilla_law,
    fit_coverage_law,
    fit_coverage_law_to_counts,
    fit_log_linear,
)

K = np.unique(np.geomspace(1, 1000, 25).astype(int))


@pytest.mark.parametrize("fit", ["coverage", "log"])
@pytest.mark.parametrize(("a", "b"), [(-2.0, -0.5), (-0.3, -0.2), (-6.0, -0.9), (-0.01, -0.05)])
def test_coverage_law_recovers_its_parameters(fit: str, a: float, b: float) -> None:
    law = fit_coverage_law(K, np.exp(a * K.astype(float) ** b), fit)  # type: ignore[arg-type]
    assert (law.a, law.b) == pytest.approx((a, b), rel=1e-6)
    assert law(K) == pytest.approx(np.exp(a * K.astype(float) ** b))


def test_coverage_law_is_the_least_squares_one() -> None:
    rng = np.random.default_rng(0)
    for a, b in [(-2.0, -0.5), (-0.5, -0.1), (-5.0, -0.8)]:
        c = np.clip(np.exp(a * K.astype(float) ** b) + rng.normal(0, 0.03, K.size), 0, 1)
        theirs, _ = curve_fit(lambda k, a, b: np.exp(a * k**b), K.astype(float), c, p0=(a, b))
        ours = fit_coverage_law(K, c)
        assert (ours.a, ours.b) == pytest.approx(tuple(theirs), rel=1e-4)


def test_coverage_law_intervals_cover_the_truth() -> None:
    """The law of all problems is where ever more problems lead; intervals from 80 of them hold it."""
    rng = np.random.default_rng(1)
    k = np.unique(np.geomspace(1, 64, 8).astype(int))
    truth = [1 - math.prod((2 + i) / (2.5 + i) for i in range(size)) for size in k.tolist()]  # Beta(0.5, 2)
    whole = fit_coverage_law(k, truth)
    trials, a_held, b_held = 120, 0, 0
    for trial in range(trials):
        law = fit_coverage_law_to_counts(
            128, rng.binomial(128, rng.beta(0.5, 2, size=80)), k, resamples=150, seed=trial
        )
        assert law.a_interval and law.b_interval
        a_held += law.a_interval[0] <= whole.a <= law.a_interval[1]
        b_held += law.b_interval[0] <= whole.b <= law.b_interval[1]
    assert 0.9 <= a_held / trials <= 0.99 and 0.9 <= b_held / trials <= 0.99  # 93-97 %, and the luck of 120 trials


def test_extrapolation_says_its_error() -> None:
    rng = np.random.default_rng(2)
    c = rng.binomial(2000, rng.beta(0.3, 3, size=300))
    far = extrapolate_coverage(2000, c, [1, 2, 4, 8, 16, 32], [64, 256, 1024])
    assert far.error == pytest.approx(np.abs(far.law(far.k) - far.observed).mean())
    assert 0.003 < far.error < 0.15, "a power law is no Beta mixture, but near one"
    low, high = far.law.confidence_band([16])
    assert low[0] < far.law(16) < high[0]
    with pytest.raises(UsageError, match="predict k above"):
        extrapolate_coverage(100, [5], [1, 10], [10, 20])


def test_coverage_laws_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="two k or more"):
        fit_coverage_law([4], [0.5])
    with pytest.raises(UsageError, match="every problem is covered"):
        fit_coverage_law([1, 2], [1.0, 1.0])
    with pytest.raises(UsageError, match="every problem is covered"):
        fit_coverage_law_to_counts(8, [0, 0], [1, 2, 4])
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        fit_coverage_law([1, 2], [35.0, 44.9])
    with pytest.raises(UsageError, match="strictly between"):
        fit_coverage_law([1, 2], [0.5, 1.0], "log")
    assert fit_coverage_law([1, 2, 4], [0.5, 0.8, 1.0]).b < 0
    # Full coverage at large k must not lead the fit astray: scipy from many starts leaves .00647 too.
    far = fit_coverage_law([1, 3, 15, 63, 251, 1000], [0.0592, 0.3747, 0.7443, 1.0, 1.0, 1.0])
    assert ((far(np.array([1, 3, 15, 63, 251, 1000])) - [0.0592, 0.3747, 0.7443, 1, 1, 1]) ** 2).sum() < 0.0065
    with pytest.raises(UsageError, match="no way to fit named"):
        fit_coverage_law([1, 2], [0.5, 0.8], "logs")  # type: ignore[arg-type]
    assert fit_coverage_law_to_counts(10, [3], [1, 2, 5]).b_interval is None  # one problem says nothing of others
    with pytest.raises(UsageError, match="fit it to problems"):
        fit_coverage_law([1, 2], [0.5, 0.8]).confidence_band([1])


CHINCHILLA = ChinchillaLaw(1.69, 406.4, 0.34, 410.7, 0.28)  # as published


def runs() -> tuple[np.ndarray, np.ndarray]:
    n, d = np.meshgrid(np.geomspace(4e7, 1.6e10, 8), np.geomspace(1e9, 5e11, 8))
    return n.ravel(), d.ravel()


def test_loss_law_recovers_the_published_one() -> None:
    n, d = runs()
    law = fit_chinchilla_law(n, d, CHINCHILLA(n, d))
    assert (law.e, law.alpha, law.beta) == pytest.approx((1.69, 0.34, 0.28), rel=1e-3)
    assert (law.a, law.b) == pytest.approx((406.4, 410.7), rel=2e-2)
    assert law.residual < 1e-5


def test_loss_law_withstands_outliers() -> None:
    n, d = runs()
    rng = np.random.default_rng(0)
    loss = CHINCHILLA(n, d) * np.exp(rng.normal(0, 1e-3, n.size))
    loss[:3] *= 1.2  # runs that went wrong
    law = fit_chinchilla_law(n, d, loss)
    assert (law.e, law.alpha, law.beta) == pytest.approx((1.69, 0.34, 0.28), rel=0.05)


def test_best_split_of_a_training_budget() -> None:
    flops = 5.76e23
    n, d = CHINCHILLA.compute_optimal(flops)
    assert 6 * n * d == pytest.approx(flops)
    around = np.geomspace(n / 4, n * 4, 2001)
    losses = CHINCHILLA(around, flops / 6 / around)
    assert around[losses.argmin()] == pytest.approx(n, rel=2e-3)
    with pytest.raises(UsageError):
        CHINCHILLA.compute_optimal(0)
    with pytest.raises(UsageError, match="5 runs"):
        fit_chinchilla_law([1e8] * 6, [1e9] * 6, [3.0] * 6)
    with pytest.raises(UsageError, match="diverged"):
        fit_chinchilla_law([1e8, 2e8, 3e8, 4e8, 5e8], [1e9, 2e9, 3e9, 4e9, 5e9], [3, 3, 3, 3, math.nan])


def test_log_linear() -> None:
    line = fit_log_linear([1, 10, 100, 1000], [0.1, 0.2, 0.3, 0.4])
    assert (line.slope, line.intercept) == pytest.approx((0.1, 0.1))
    assert line.compute_for(0.35) == pytest.approx(10**2.5) and line(1e4) == pytest.approx(0.5)
    assert fit_log_linear([1, 10], [0.1, 0.2]).slope_interval is None
    rng = np.random.default_rng(0)
    x, held = np.geomspace(1, 1e4, 8), 0
    for _ in range(1000):
        result = fit_log_linear(x, 0.2 + 0.1 * np.log10(x) + rng.normal(0, 0.02, 8)).slope_interval
        assert result is not None
        held += result[0] <= 0.1 <= result[1]
    assert 0.93 <= held / 1000 <= 0.97
    with pytest.raises(UsageError, match="stands twice"):
        fit_log_linear([1, 1, 10], [0.1, 0.2, 0.3])
    with pytest.raises(UsageError, match="no compute is enough"):
        fit_log_linear([1, 10], [0.2, 0.1]).compute_for(0.5)


@pytest.mark.parametrize("factor", [0.25, 1.0, 7.0, 40.0])
def test_shift_is_found(factor: float) -> None:
    def curve(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + 30 / x)

    x1, x2 = np.geomspace(1, 1e5, 60), np.geomspace(3, 3e3, 50)
    result = compute_shift((x1, curve(x1 / factor)), (x2, curve(x2)))
    assert result.factor == pytest.approx(factor, rel=0.01)
    assert result.min_factor == pytest.approx(factor, rel=0.03) and result.max_factor == pytest.approx(factor, rel=0.03)
    back = compute_shift((x2, curve(x2)), (x1, curve(x1 / factor)))
    assert back.factor * result.factor == pytest.approx(1) and back.accuracy_range == result.accuracy_range


def test_shift_of_curves_that_part() -> None:
    """One gains .1 per tenfold compute and the other .2: no single factor, and the result says so."""
    x = np.geomspace(1, 1e4, 9)
    result = compute_shift((x, 0.1 * np.log10(x)), (x, 0.2 * np.log10(x)))
    assert result.accuracy_range == pytest.approx((0, 0.4))
    assert (result.min_factor, result.factor, result.max_factor) == pytest.approx((1, 10, 100))
    dip = compute_shift(([1, 10, 100], [0.1, 0.05, 0.3]), ([1, 100], [0.1, 0.3]))
    assert dip.factor == pytest.approx(1)  # what falls need not be bought
    with pytest.raises(UsageError, match="share no range"):
        compute_shift(([1, 2], [0.1, 0.2]), ([1, 2], [0.3, 0.4]))
    with pytest.raises(UsageError, match="share no range"):
        compute_shift(([1, 2], [0.1, 0.1]), ([1, 2], [0.1, 0.4]))
