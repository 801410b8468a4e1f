"""Coverage curves: a million samples, ten million samples, unequal ones, and what is said where some are missing."""

from __future__ import annotations

import math
import random
import time

import mpmath
import numpy as np
import pytest

from ponder.errors import UsageError
from ponder.measure import coverage_curve, mean_pass_at_k, pass_at_k


def reference(n: int, c: int, k: int) -> float:
    """With forty digits."""
    if n - c < k:
        return 1.0
    with mpmath.workdps(40):
        log = mpmath.loggamma
        return float(-mpmath.expm1(log(n - c + 1) - log(n - c - k + 1) - log(n + 1) + log(n - k + 1)))


def test_stable_to_ten_million_samples() -> None:
    rng = random.Random(0)
    for _ in range(1500):
        n = int(10 ** rng.uniform(0, 7))
        c, k = (min(n, int(n ** rng.uniform(0, 1.02))) for _ in range(2))
        near = max(1, n - c - rng.randrange(20))  # few wrong samples are left over
        for size in (k, min(near, n)):
            assert float(pass_at_k(n, c, size)) == pytest.approx(reference(n, c, size), abs=2e-12)


def test_a_million_samples_times_a_thousand_k_take_seconds() -> None:
    c = np.random.default_rng(0).integers(0, 1001, size=1000)
    start = time.thread_time()
    curve = coverage_curve(1000, c, np.arange(1, 1001))
    assert time.thread_time() - start < 10  # less than one
    assert curve.mean[[0, 499]] == pytest.approx([mean_pass_at_k(1000, c, k) for k in (1, 500)])
    assert (np.diff(curve.mean) > -1e-12).all()
    assert ((curve.low <= curve.mean + 1e-12) & (curve.mean <= curve.high + 1e-12)).all()


def test_problems_as_many_as_samples() -> None:
    """With more different counts than the bootstrap takes, the central limit gives the same interval."""
    rng = np.random.default_rng(1)
    n = rng.integers(50, 150, size=20_000)
    c = rng.binomial(n, 0.3)
    assert len(set(zip(n.tolist(), c.tolist(), strict=True))) < 5000
    one = coverage_curve(n, c, [1, 50])
    other = coverage_curve(n, c, [1, 50], resamples=0)
    assert other.low == pytest.approx(one.low, abs=1e-3) and other.high == pytest.approx(one.high, abs=1e-3)


def test_too_few_samples_are_told() -> None:
    with pytest.raises(UsageError, match="pass@8 needs 8 samples of every problem; 1 of 2 have fewer"):
        coverage_curve([4, 8], [1, 3], [1, 8])
    curve = coverage_curve([4, 8], [1, 3], [1, 4, 8, 9], short="missing")
    assert curve.missing.tolist() == [0, 0, 1, 2] and np.isnan(curve.mean).tolist() == [False, False, True, True]
    left = coverage_curve([4, 8], [1, 3], [1, 4, 8, 9], short="drop")
    assert left.problems.tolist() == [2, 2, 1, 0] and left.mean[2] == 1.0 and math.isnan(left.mean[3])
    assert np.isnan(pass_at_k([4, 8], [1, 3], [4, 8], short="missing")).tolist() == [[False, True], [False, False]]


def test_one_problem_says_nothing_of_others() -> None:
    curve = coverage_curve([10], [3], [1, 5])
    assert curve.mean.tolist() == [0.3, pytest.approx(11 / 12)] and np.isnan([curve.low, curve.high]).all()


def test_all_right_or_all_wrong_is_not_certain() -> None:
    curve = coverage_curve(4, [4] * 20, [1, 4])
    assert curve.mean.tolist() == [1, 1] and curve.low == pytest.approx([0.839, 0.839], abs=1e-3)
    curve = coverage_curve(4, [0] * 20, [1, 4])
    assert curve.mean.tolist() == [0, 0] and curve.high == pytest.approx([0.161, 0.161], abs=1e-3)


def test_interval_covers_the_truth() -> None:
    """Problems drawn from Beta(0.5, 1.5): the interval of mean pass@4 holds the true mean 93 to 97 % of the time."""
    rng = np.random.default_rng(5)
    truth = 1 - math.prod((1.5 + i) / (2 + i) for i in range(4))  # E[1 - (1 - p)^4]
    held = 0
    for trial in range(400):
        c = rng.binomial(16, rng.beta(0.5, 1.5, size=150))
        curve = coverage_curve(16, c, [4], resamples=400, seed=trial)
        held += bool(curve.low[0] <= truth <= curve.high[0])
    assert 0.93 <= held / 400 <= 0.97


def test_refuses_what_is_no_count() -> None:
    with pytest.raises(UsageError, match="c must be whole numbers"):
        pass_at_k(4, 0.5, 1)
    with pytest.raises(UsageError, match="1 of 2 problems have no sample"):
        coverage_curve([4, 0], [1, 0], [1])
    with pytest.raises(UsageError, match="no problems"):
        coverage_curve([], [], [1])
    with pytest.raises(UsageError, match="one n and one c; got 3 and 2"):
        pass_at_k([4, 5, 6], [1, 2], 1)
    with pytest.raises(UsageError, match="at least one k"):
        coverage_curve([4], [1], [])
    with pytest.raises(UsageError, match="c must be whole numbers"):
        coverage_curve([4, 4], [1, None], [1])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="Did you mean 'missing'"):
        coverage_curve([4], [1], [1], short="mising")  # type: ignore[arg-type]


def test_problems_that_are_all_half_right_are_not_certain() -> None:
    curve = coverage_curve([2] * 6, [1] * 6, [1, 2])
    assert curve.mean.tolist() == [0.5, 1.0]
    assert curve.low[0] < 0.3 and curve.high[0] > 0.7


def test_few_problems_are_covered_too() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        rates = rng.beta(1, 1, 12)
        curve = coverage_curve([8] * 12, rng.binomial(8, rates), [1], resamples=600)
        held += curve.low[0] <= 0.5 <= curve.high[0]
    assert 0.93 <= held / 300 <= 0.98
