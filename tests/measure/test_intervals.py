"""Intervals against scipy, published examples and their own promise: how often they cover the truth."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ponder.errors import UsageError
from ponder.measure import Accuracy, MeanInterval, PairedDifference, bootstrap_mean, paired_difference, wilson
from ponder.measure.statistics.intervals import mean_with_undecided
from processor_time import processor_time_below


def table(both: int, won: int, lost: int, neither: int) -> tuple[list[int], list[int]]:
    """Outcomes of two systems that give these four counts."""
    first = [1] * (both + won) + [0] * (lost + neither)
    second = [1] * both + [0] * won + [1] * lost + [0] * neither
    return first, second


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_is_scipys(counts: tuple[int, int], level: float) -> None:
    right, total = counts
    theirs = stats.binomtest(right, total).proportion_ci(level, method="wilson")
    assert wilson(right, total, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    low, high = wilson(right, total, level)
    assert 0 <= low <= right / total <= high <= 1


@pytest.mark.parametrize(("right", "total"), [(1, 0), (0, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(right: int, total: int) -> None:
    with pytest.raises(UsageError, match=f"{right} right of {total}"):
        wilson(right, total)


def test_accuracy_reads_well() -> None:
    assert str(Accuracy(244, 300)) == "81.3 % [76.5, 85.3] (244 of 300; fewer than 500 problems)"
    assert str(Accuracy(500, 500)) == "100.0 % [99.2, 100.0] (500 of 500)"
    assert dataclasses.asdict(Accuracy(1, 2)).keys() == {"correct", "total", "undecided", "low", "high"}


def test_unknown_is_not_zero() -> None:
    result = Accuracy.from_outcomes([True, 1.0, 0, False, None, math.nan])
    assert (result.correct, result.total, result.undecided) == (2, 6, 2) and result.mean == 2 / 6
    assert (result.low, result.high) == (wilson(2, 6)[0], wilson(4, 6)[1]), "all of them wrong, to all of them right"
    assert "2 of 6; 2 undecided, not right as far as is known" in str(result)
    nothing = Accuracy.from_outcomes([None, None])
    assert (nothing.low, nothing.high) == (0.0, 1.0)
    with pytest.raises(UsageError, match="more than all"):
        Accuracy(2, 3, 2)
    with pytest.raises(UsageError, match="bootstrap_mean"):
        Accuracy.from_outcomes([0.5])


def test_every_problem_is_in_the_denominator() -> None:
    result = mean_with_undecided([1.0, 0.5, None, 0.0])
    assert isinstance(result, MeanInterval) and (result.mean, result.total, result.undecided) == (1.5 / 4, 4, 1)
    assert (result.low, result.high) == (
        bootstrap_mean([1.0, 0.5, 0.0, 0.0]).low,
        bootstrap_mean([1.0, 0.5, 1.0, 0.0]).high,
    )
    assert "37.5 % [0.0, 100.0] (mean of 4 problems; 1 undecided, not right as far as is known" in str(result)
    assert (
        isinstance(mean_with_undecided([1.0, None, 0.0]), Accuracy)
        and mean_with_undecided([1.0, None, 0.0]).mean == 1 / 3
    )
    graded = mean_with_undecided([1.0, None, 0.0], graded=True)
    assert isinstance(graded, MeanInterval) and graded.mean == 1 / 3
    beyond = mean_with_undecided([2.0, None, -1.0])  # no ends between which the unknown one lies
    assert (
        isinstance(beyond, MeanInterval)
        and (beyond.mean, beyond.total) == (0.5, 2)
        and "1 undecided, left out" in str(beyond)
    )


# Newcombe's method 10 on two published tables: Altman et al., Statistics with Confidence (2000), p. 52, and
# Bentur et al. (2009) as worked by Fagerland, Lydersen and Laake (2014).
@pytest.mark.parametrize(("counts", "low", "high"), [((14, 5, 0, 22), 0.011, 0.226), ((1, 1, 7, 12), -0.507, -0.026)])
def test_paired_interval_as_published(counts: tuple[int, int, int, int], low: float, high: float) -> None:
    result = paired_difference(*table(*counts))
    assert (result.low, result.high) == pytest.approx((low, high), abs=5e-4)
    assert result.mean == pytest.approx((counts[1] - counts[2]) / sum(counts))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80))
def test_swapping_the_systems_mirrors_the_interval(pairs: list[tuple[bool, bool]]) -> None:
    first, second = zip(*pairs, strict=True)
    there, back = paired_difference(first, second), paired_difference(second, first)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    assert -1 <= there.low <= there.mean <= there.high <= 1
    assert (there.wins, there.losses, there.p_value) == (back.losses, back.wins, back.p_value)


@given(st.integers(0, 60), st.integers(0, 60))
def test_p_value_is_the_exact_sign_test(won: int, lost: int) -> None:
    if won + lost:
        result = paired_difference(*table(3, won, lost, 4))
        assert result.p_value == pytest.approx(stats.binomtest(won, won + lost).pvalue)


@pytest.mark.parametrize("cells", [(0.3, 0.2, 0.1, 0.4), (0.7, 0.1, 0.1, 0.1), (0.05, 0.3, 0.05, 0.6)])
def test_paired_interval_covers_the_truth(cells: tuple[float, float, float, float]) -> None:
    """Summed over every table of 30 problems, the interval holds the true difference about 95 % of the time."""
    n, covered = 30, 0.0
    law = stats.multinomial(n, cells)
    for both, won, lost in itertools.product(range(n + 1), repeat=3):
        if (neither := n - both - won - lost) >= 0 and (chance := law.pmf([both, won, lost, neither])) > 1e-7:
            result = paired_difference(*table(both, won, lost, neither))
            covered += chance * (result.low <= cells[1] - cells[2] <= result.high)
    assert 0.93 < covered < 0.98


def test_undecided_problems_leave_both_systems() -> None:
    result = paired_difference([1, 0, None, 1], [1, 1, 1, None])
    assert (result.total, result.wins, result.losses, result.undecided) == (2, 0, 1, 2)
    assert "paired, Newcombe" in str(result)
    with pytest.raises(UsageError, match="same problems"):
        paired_difference([1], [1, 0])
    with pytest.raises(UsageError, match="nothing to compare"):
        paired_difference([None], [1])


def test_bootstrap_agrees_with_scipy_and_repeats() -> None:
    values = np.random.default_rng(1).beta(0.5, 0.5, size=300)
    ours = bootstrap_mean(values)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=2).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.003)
    assert ours == bootstrap_mean(values)
    assert bootstrap_mean([1.0, None, 3.0]).undecided == 1
    assert "fewer than 500" in str(ours)
    with pytest.raises(UsageError):
        bootstrap_mean([None])


def test_wilson_covers_the_truth() -> None:
    """Exactly, by the binomial law: on average over accuracies 93 to 97 %, at each one nearly so."""
    total = 60
    held = np.array([wilson(right, total) for right in range(total + 1)])
    chances = [
        float(stats.binom.pmf(np.arange(total + 1), total, p) @ ((held[:, 0] <= p) & (p <= held[:, 1])))
        for p in np.linspace(0.05, 0.95, 181)
    ]
    assert 0.945 < np.mean(chances) < 0.96 and min(chances) > 0.9


def test_bootstrap_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    held = sum((m := bootstrap_mean(rng.beta(0.5, 1.5, 120), resamples=400)).low <= 0.25 <= m.high for _ in range(800))
    assert 0.93 <= held / 800 <= 0.97


def test_bootstrap_in_slices_draws_as_many() -> None:
    """More problems than fit in one slice of resamples: the interval is still that of the central limit."""
    values = np.random.default_rng(3).normal(size=50_000)
    result = bootstrap_mean(values, resamples=400)
    half = 1.96 / math.sqrt(values.size)
    assert (result.high - result.low) / 2 == pytest.approx(half, rel=0.15)


def test_few_problems_are_covered_too() -> None:
    """Redrawing ten problems varies less than drawing them: the plain percentile interval holds the truth 91 times."""
    rng = np.random.default_rng(2)
    held = sum((m := bootstrap_mean(rng.beta(2, 2, 10), resamples=1000)).low <= 0.5 <= m.high for _ in range(600))
    assert 0.93 <= held / 600 <= 0.97


def test_equal_values_are_not_certain() -> None:
    one, five = bootstrap_mean([0.5]), bootstrap_mean([0.5] * 5)
    assert one.low == pytest.approx(0.0125) and one.high == pytest.approx(0.9875)
    assert one.low < five.low < 0.5 < five.high < one.high
    # a set in which a share q of problems is all wrong gives five problems of 0.5 once in forty times
    q = 1 - 0.025 ** (1 / 5)
    assert five.low == pytest.approx(0.5 * (1 - q))
    assert math.isnan(bootstrap_mean([3.0, 3.0]).low), "no bound is known for values that are no shares"
    with pytest.raises(UsageError, match="infinite"):
        bootstrap_mean([1.0, math.inf])


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (3, 9), (40, 60), (600, 650)])
def test_the_exact_test_is_the_binomial_one(won: int, lost: int) -> None:
    result = PairedDifference(0.0, 0.0, 0.0, 10_000, won, lost)
    wanted = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert result.p_value == pytest.approx(wanted, rel=1e-9)


def test_the_exact_test_takes_no_time_for_many_problems() -> None:
    with processor_time_below(1.0):
        assert PairedDifference(0.0, 0.0, 0.0, 10**6, 50_000, 50_300).p_value == pytest.approx(0.3450, abs=2e-4)
