"""Calibration and ranking against loops over bins and pairs, and their intervals against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.measure import (
    auroc,
    brier,
    budget_control,
    budget_performance,
    budget_scaling,
    ece,
    fit_platt,
    fit_temperature,
    reliability,
)

SAMPLES = st.lists(st.tuples(st.integers(0, 8).map(lambda x: x / 8), st.integers(0, 1)), min_size=2, max_size=40)


@given(SAMPLES)
def test_auroc_is_the_share_of_pairs_won(samples: list[tuple[float, int]]) -> None:
    good, bad = ([s for s, r in samples if r == kind] for kind in (1, 0))
    scores, right = [s for s, _ in samples], [r for _, r in samples]
    if not good or not bad:
        with pytest.raises(UsageError, match="nothing to tell apart"):
            auroc(scores, right)
        return
    won = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    result = auroc(scores, right)
    assert result.area == pytest.approx(won / (len(good) * len(bad)))
    assert 0 <= result.low <= result.area <= result.high <= 1


@pytest.mark.parametrize(("r", "w", "apart"), [(40, 60, 1.0), (25, 25, 0.0), (30, 200, 1.5)])
def test_auroc_interval_covers_the_truth(r: int, w: int, apart: float) -> None:
    rng = np.random.default_rng(1)
    truth, held, trials = 0.5 * math.erfc(-apart / 2), 0, 800  # two normals so far apart
    right = [1] * r + [0] * w
    for _ in range(trials):
        result = auroc(np.concatenate([rng.normal(apart, 1, r), rng.normal(0, 1, w)]).tolist(), right)
        held += result.low <= truth <= result.high
    assert 0.93 <= held / trials <= 0.97


def test_auroc_over_problems_is_wider_where_their_samples_are_alike() -> None:
    rng = np.random.default_rng(2)
    problem = np.repeat(np.arange(40), 8)
    score = np.repeat(rng.normal(size=40), 8)
    right = np.repeat(rng.integers(0, 2, 40), 8).tolist()
    alone, whole = auroc(score.tolist(), right), auroc(score.tolist(), right, problem.tolist())
    assert whole.area == alone.area and whole.high - whole.low > 2 * (alone.high - alone.low)


def test_perfect_ranking_is_not_certain() -> None:
    result = auroc([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1])
    assert result.area == 1 and result.low < 0.5 and result.high == 1
    assert auroc([0.1, 0.9], [1, 0]).area == 0


@given(SAMPLES, st.integers(1, 6))
def test_ece_by_a_loop_over_bins(samples: list[tuple[float, int]], bins: int) -> None:
    scores, right = [s for s, _ in samples], [r for _, r in samples]
    gap = 0.0
    for b in range(bins):
        inside = [(s, r) for s, r in samples if b / bins <= s < (b + 1) / bins or (b == bins - 1 and s == 1)]
        gap += abs(sum(r - s for s, r in inside)) / len(samples)
    assert ece(scores, right, bins) == pytest.approx(gap)
    assert brier(scores, right) == pytest.approx(sum((s - r) ** 2 for s, r in samples) / len(samples))
    mass = reliability(scores, right, bins, "mass")
    assert mass.count.sum() == len(samples) and (np.diff(mass.confidence) > 0).all()
    assert mass.ece >= abs(np.mean(np.subtract(right, scores))) - 1e-12


def test_bins_of_equal_mass() -> None:
    scores = np.random.default_rng(0).random(1000) ** 3
    result = reliability(scores.tolist(), [0, 1] * 500, 10, "mass")
    assert result.count.tolist() == [100] * 10
    assert ((result.low < 0.5) & (result.high > 0.5)).sum() >= 8


def test_calibrated_scores_have_little_error() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(40_000)
    right = (rng.random(p.size) < p).astype(int).tolist()
    assert ece(p.tolist(), right) < 0.01 and brier(p.tolist(), right) == pytest.approx(1 / 6, abs=0.005)
    logit = np.log(p / (1 - p))
    assert fit_temperature((logit * 3).tolist(), right) == pytest.approx(3, rel=0.03)
    assert fit_temperature((logit / 2).tolist(), right) == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.2, -3.0), (-5.0, 1.0)])
def test_platt_scaling_finds_the_line_of_any_score(slope: float, offset: float) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(-20, 5, 40_000) if slope == 0.2 else rng.normal(0, 1, 40_000)
    if slope == 0.2:
        offset += 20 * slope
    p = 1 / (1 + np.exp(-slope * scores - offset))
    right = (rng.random(p.size) < p).astype(int)
    found = fit_platt(scores.tolist(), right.tolist())
    assert found.slope == pytest.approx(slope, rel=0.05) and found.offset == pytest.approx(offset, abs=0.12)
    assert ece(found(scores.tolist()).tolist(), right.tolist()) < 0.01


@given(st.lists(st.tuples(st.floats(-30, 30), st.integers(0, 1)), min_size=2, max_size=30))
def test_platt_scaling_by_newtons_steps(samples: list[tuple[float, int]]) -> None:
    x, right = (np.array([s[i] for s in samples], float) for i in (0, 1))
    hits, misses = right.sum(), (1 - right).sum()
    if not hits or not misses:
        with pytest.raises(UsageError, match="nothing to calibrate"):
            fit_platt(x.tolist(), right.tolist())
        return
    found = fit_platt(x.tolist(), right.tolist())
    target = np.where(right == 1, (hits + 1) / (hits + 2), 1 / (misses + 2))

    def loss(slope: float, offset: float) -> float:
        z = slope * x + offset
        return float(np.sum(np.logaddexp(0, z) - target * z))

    slope, offset = 0.0, math.log((hits + 1) / (misses + 1))  # as Platt's own program begins
    for _ in range(200):
        p = 1 / (1 + np.exp(-np.clip(slope * x + offset, -700, 700)))
        weight = p * (1 - p)
        hessian = np.array([[weight @ x**2, weight @ x], [weight @ x, weight.sum()]]) + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, [(p - target) @ x, (p - target).sum()])
        size = 1.0
        while loss(slope - size * step[0], offset - size * step[1]) > loss(slope, offset) and size > 1e-10:
            size /= 2
        slope, offset = slope - size * step[0], offset - size * step[1]
    assert loss(found.slope, found.offset) <= loss(slope, offset) + 1e-7
    assert np.isfinite([found.slope, found.offset]).all()


def test_platt_scaling_of_scores_that_are_right_every_time_is_not_certain() -> None:
    found = fit_platt([1.0, 1.0, 9.0, 9.0], [0, 0, 1, 1])
    assert found([1.0, 9.0]) == pytest.approx([1 / 4, 3 / 4], abs=1e-5)


def test_refuses_scores_that_are_missing_or_no_probabilities() -> None:
    with pytest.raises(UsageError, match="1 of 2 samples lack a score or a verdict"):
        ece([0.5, None], [1, 0])
    with pytest.raises(UsageError, match="sigmoid"):
        brier([3.0, 0.1], [1, 0])
    with pytest.raises(UsageError, match="all outcomes are the same"):
        fit_temperature([1.0, 2.0], [1, 1])
    with pytest.raises(UsageError, match="no better than a coin"):
        fit_temperature([1.0, -2.0, 3.0, 0.5], [0, 1, 0, 1])
    with pytest.raises(UsageError, match="no way of making bins named 'size'"):
        ece([0.5], [1], by="size")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="every time"):
        fit_temperature([1.0, -2.0], [1, 0])
    with pytest.raises(UsageError, match="right \\(1\\) or wrong"):
        auroc([0.1, 0.2], [0.5, 1])


def test_control_scaling_performance() -> None:
    assert budget_control([500, 1000, 2100, 4000], 2048) == 0.5
    assert budget_control([500, 1000, 2100], [600, 900, 2100], [0, 0, 2000]) == pytest.approx(2 / 3)
    budgets, accuracies = [1000, 2000, 4000], [0.2, 0.3, 0.6]
    assert budget_scaling(budgets, accuracies) == pytest.approx((0.1 / 1000 + 0.4 / 3000 + 0.3 / 2000) / 3)
    assert budget_scaling(budgets[::-1], accuracies[::-1]) == budget_scaling(budgets, accuracies)
    assert budget_performance(accuracies) == 0.6
    for bad in (
        lambda: budget_scaling([1], [0.5]),
        lambda: budget_scaling([1, 1], [0.5, 0.6]),
        lambda: budget_performance([]),
    ):
        with pytest.raises(UsageError):
            bad()
    with pytest.raises(UsageError, match="one for each"):
        budget_control([5, 6], [1, 2, 3])
    with pytest.raises(UsageError, match="least"):
        budget_control([5], 1, 2)
    with pytest.raises(UsageError, match="no number"):
        budget_performance([0.5, math.nan])


def test_a_perfect_ranking_of_few_problems_is_not_certain() -> None:
    scores, right = [0.9, 0.8, 0.1, 0.2, 0.9, 0.1], [1, 1, 0, 0, 1, 0]
    result = auroc(scores, right, problems=["a", "a", "b", "b", "c", "c"])
    assert result.area == result.high == 1.0
    assert result.low == pytest.approx(math.sqrt(0.025)), "two problems with right ones, two with wrong ones"
    worst = auroc(scores, [1 - r for r in right], problems=["a", "a", "b", "b", "c", "c"])
    assert (worst.low, worst.high) == pytest.approx((0.0, 1 - math.sqrt(0.025)))


def test_arrays_are_sequences() -> None:
    assert budget_scaling(np.array([1.0, 2.0]), np.array([0.1, 0.3])) == pytest.approx(0.2)
    assert budget_performance(np.array([0.1, 0.3])) == 0.3
