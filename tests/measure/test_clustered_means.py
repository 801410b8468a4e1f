"""Intervals over problems and samples keep their promise; tests and sample sizes against scipy and simulation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ponder.errors import UsageError
from ponder.measure import (
    clustered_mean,
    hierarchical_bootstrap,
    minimum_detectable_difference,
    paired_difference,
    paired_means,
    pass_at_k,
    problems_for_accuracies,
    problems_for_means,
    sign_flip_test,
)


def draw(rng: np.random.Generator, problems: int, samples: int, a: float = 0.6, b: float = 0.9) -> list[list[float]]:
    rate = rng.beta(a, b, size=(problems, 1))
    return (rng.random((problems, samples)) < rate).astype(float).tolist()


@pytest.mark.parametrize(("samples", "a", "b"), [(4, 0.6, 0.9), (2, 4.0, 6.0), (16, 0.3, 0.45)])
def test_interval_over_problems_covers_the_truth(samples: int, a: float, b: float) -> None:
    """All means are .4. In the second case most of the spread is the samples' own."""
    rng = np.random.default_rng(samples)
    trials, analytic, drawn = 200, 0, 0
    for trial in range(trials):
        groups = draw(rng, 60, samples, a, b)
        exact = clustered_mean(groups)
        again = hierarchical_bootstrap(groups, resamples=200, seed=trial)
        analytic += exact.low <= 0.4 <= exact.high
        drawn += again.low <= 0.4 <= again.high
    assert 0.92 <= analytic / trials <= 0.98 and 0.92 <= drawn / trials <= 0.98  # 93-97 %, and the luck of 200 trials


def test_interval_over_samples_is_for_these_problems() -> None:
    rng = np.random.default_rng(0)
    rate = rng.beta(0.5, 0.5, size=40)
    held = trials = 0
    for trial in range(200):
        groups = (rng.random((40, 12)) < rate[:, None]).astype(float).tolist()
        result = hierarchical_bootstrap(groups, level_to_resample="samples", resamples=300, seed=trial)
        held += result.low <= rate.mean() <= result.high
        trials += 1
        assert result.problem_standard_error == 0
    assert 0.92 <= held / trials <= 0.98


def test_where_the_error_comes_from() -> None:
    rng = np.random.default_rng(1)
    alike = [[float(x)] * 8 for x in rng.integers(0, 2, 200)]  # samples of a problem never differ
    result = clustered_mean(alike)
    assert result.sample_standard_error == 0 and result.problem_standard_error == pytest.approx(
        0.5 / math.sqrt(200), rel=0.05
    )
    coin = rng.integers(0, 2, (200, 8)).astype(float).tolist()  # problems never differ
    result = clustered_mean(coin)
    assert result.sample_standard_error == pytest.approx(0.5 / math.sqrt(1600), rel=0.05)
    assert result.problem_standard_error < result.sample_standard_error
    assert clustered_mean([[1.0], [0.0]]).sample_standard_error is None
    naive = math.sqrt(0.25 / 1600)
    assert (clustered_mean(alike).high - clustered_mean(alike).low) / 2 > 2 * 1.96 * naive


def test_analytic_is_students_interval() -> None:
    groups = draw(np.random.default_rng(2), 30, 5)
    means = [np.mean(g) for g in groups]
    result = clustered_mean(groups)
    theirs = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((theirs.low, theirs.high))


def test_bootstrap_takes_any_statistic() -> None:
    groups = draw(np.random.default_rng(3), 80, 10)

    def pass4(x: np.ndarray) -> np.ndarray:
        return pass_at_k(x.shape[-1], x.sum(axis=-1), 4)

    both, problems = (
        hierarchical_bootstrap(groups, pass4),
        hierarchical_bootstrap(groups, pass4, level_to_resample="problems"),
    )
    assert both.mean == problems.mean == pytest.approx(pass_at_k(10, [sum(g) for g in groups], 4).mean())
    assert both.high - both.low == pytest.approx(problems.high - problems.low, rel=0.15)
    assert both.sample_standard_error and both.sample_standard_error > 0 and problems.sample_standard_error is None


def test_missing_verdicts_are_counted() -> None:
    result = clustered_mean([[1, None], [0, 0], [None, None]])
    assert (result.mean, result.problems, result.samples, result.undecided, result.problems_without_verdict) == (
        0.5,
        2,
        3,
        3,
        1,
    )
    assert clustered_mean([[1, 1], [1, 1], [1]]).low < 0.7, "all right is not certain"
    assert hierarchical_bootstrap([[1, 1], [1, 1], [1]]).low < 0.7
    with pytest.raises(UsageError, match="two problems"):
        clustered_mean([[1, 0, 1]])
    with pytest.raises(UsageError, match="no problem has a sample"):
        hierarchical_bootstrap([[None], []])
    with pytest.raises(UsageError, match="no number"):
        hierarchical_bootstrap([["right"], [1.0]])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"no level to draw again named 'sample'. Did you mean 'samples'"):
        hierarchical_bootstrap([[1.0], [0.0]], level_to_resample="sample")  # type: ignore[arg-type]


def test_paired_means_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    first, second = draw(rng, 50, 3), draw(rng, 50, 6)
    result = paired_means(first, second)
    a, b = [np.mean(g) for g in first], [np.mean(g) for g in second]
    theirs = stats.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert result.p_value == pytest.approx(theirs.pvalue, abs=0.05)
    assert result.problems == result.clusters == 50 and "paired over 50" in str(result)


def test_sign_flip_is_exact_for_few() -> None:
    for gaps in ([1.0, 2.0, -0.5], [0.25] * 6, [0.0, 0.0], [1.0, -1.0]):
        real = [g for g in gaps if g]
        sums = [abs(sum(s * g for s, g in zip(signs, real, strict=True)))
                for signs in itertools.product((1, -1), repeat=len(real))]  # fmt: skip
        assert sign_flip_test(gaps) == pytest.approx(np.mean([s >= abs(sum(real)) - 1e-12 for s in sums]))
    many = np.random.default_rng(0).normal(0.2, 1, 60)
    theirs = stats.permutation_test((many,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1).pvalue
    assert sign_flip_test(many) == pytest.approx(theirs, abs=0.015)
    wins = [1.0] * 14 + [-1.0] * 4  # as right or wrong: McNemar's exact test
    mcnemar = paired_difference([1] * 14 + [0] * 4, [0] * 14 + [1] * 4).p_value
    assert sign_flip_test(wins, flips=40_000) == pytest.approx(mcnemar, abs=0.005)


def test_clusters_widen_the_interval_as_they_must() -> None:
    """Ten problems from each of 30 passages, with a gap that belongs to the passage: the interval covers 0."""
    rng = np.random.default_rng(5)
    passage = np.repeat(np.arange(30), 10).tolist()
    held = wrong = 0
    for trial in range(200):
        gap = np.repeat(rng.normal(0, 0.2, 30), 10) + rng.normal(0, 0.1, 300)
        first, second = [[g] for g in gap], [[0.0]] * 300
        result = paired_means(first, second, passage, flips=1)
        held += result.low <= 0 <= result.high
        if trial < 40:
            alone = paired_means(first, second, flips=1)
            wrong += not alone.low <= 0 <= alone.high
    assert 0.93 <= held / 200 <= 0.97 and wrong / 40 > 0.3 and result.clusters == 30


def test_paired_refuses() -> None:
    with pytest.raises(UsageError, match="same problems"):
        paired_means([[1]], [[1], [0]])
    with pytest.raises(UsageError, match="two problems"):
        paired_means([[1], [None]], [[1], [0]])
    assert paired_means([[1], [None], [0]], [[1], [0], [1]]).undecided == 1


def test_unpaired_problems_needed_as_in_tables() -> None:
    assert problems_for_accuracies(0.1, 0.5) == 388  # Fleiss's table without continuity correction
    assert problems_for_accuracies(-0.1, 0.6) == 388
    assert problems_for_accuracies(0.02, 0.5) > 9000


def test_so_many_problems_show_the_difference_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    accuracy, gap, disagree = 0.6, 0.08, 0.2
    n = problems_for_accuracies(gap, accuracy, disagree)
    won, lost = (disagree + gap) / 2, (disagree - gap) / 2
    table = rng.multinomial(n, [won, lost, 1 - disagree], size=4000)
    z = (table[:, 0] - table[:, 1]) / np.sqrt(table[:, 0] + table[:, 1])
    assert np.mean(np.abs(z) > 1.96) == pytest.approx(0.8, abs=0.025)
    n = problems_for_accuracies(gap, accuracy)
    first, second = rng.binomial(n, accuracy, 4000) / n, rng.binomial(n, accuracy + gap, 4000) / n
    middle = (first + second) / 2
    assert np.mean(np.abs(second - first) / np.sqrt(2 * middle * (1 - middle) / n) > 1.96) == pytest.approx(
        0.8, abs=0.025
    )
    n = problems_for_means(0.05, 0.2, 0.4, samples=4)
    gaps = rng.normal(0.05, math.sqrt(0.04 + 2 * 0.16 / 4), size=(3000, n))
    seen = np.abs(gaps.mean(axis=1)) / (gaps.std(axis=1, ddof=1) / math.sqrt(n)) > 1.96
    assert seen.mean() == pytest.approx(0.8, abs=0.025)
    assert problems_for_means(0.05, 0.2, 0.4, samples=64) < n / 2


@pytest.mark.parametrize("unit", [1e-320, 1e-200, 1.0, 1e200, 1e307])
def test_problems_for_means_of_any_unit(unit: float) -> None:
    assert problems_for_means(unit, unit) == 8
    assert problems_for_means(-unit, 2 * unit, unit, samples=2) == problems_for_means(1.0, 2.0, 1.0, samples=2) == 40


def test_problems_for_means_are_at_least_one() -> None:
    assert problems_for_means(1e300, 1e-300) == 1


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, pytest.param(10**400, id="huge")])
@pytest.mark.parametrize("name", ["difference", "problem_sd", "sample_sd", "samples"])
def test_problems_for_means_refuse_what_is_not_finite(name: str, bad: Any) -> None:
    given: dict[str, Any] = {"difference": 1.0, "problem_sd": 1.0, "sample_sd": 1.0, "samples": 2, name: bad}
    with pytest.raises(UsageError, match=f"{name} is .*; it must be a (finite number|number that a float can hold)"):
        problems_for_means(**given)


def test_difference_seen_turns_it_round() -> None:
    for disagree in (None, 0.3):
        gap = minimum_detectable_difference(500, 0.5, disagree)
        assert problems_for_accuracies(gap, 0.5, disagree) <= 500 < problems_for_accuracies(gap * 0.98, 0.5, disagree)
    assert math.isnan(minimum_detectable_difference(3, 0.9))
    for bad in (
        lambda: problems_for_accuracies(0.0, 0.5),
        lambda: problems_for_accuracies(0.6, 0.5),
        lambda: minimum_detectable_difference(0, 0.5),
    ):
        with pytest.raises(UsageError):
            bad()
    with pytest.raises(UsageError, match="cannot disagree"):
        problems_for_accuracies(0.1, 0.5, 0.05)
    with pytest.raises(UsageError, match="cannot disagree"):
        problems_for_accuracies(0.02, 0.95, 0.5)
    with pytest.raises(UsageError, match="cannot disagree"):
        minimum_detectable_difference(500, 0.95, 0.5)
    assert 0 < minimum_detectable_difference(5000, 0.9, 0.15) < 0.05


def test_problems_that_are_all_alike_are_not_certain() -> None:
    groups = [[0, 1], [1, 0], [0, 1]]
    for item in (clustered_mean(groups), hierarchical_bootstrap(groups, level_to_resample="problems")):
        assert item.mean == 0.5
        assert 0.1 < item.low < 0.2 and 0.8 < item.high < 0.9
    gaps = paired_means(groups, [[0, 0]] * 3)
    assert gaps.mean == 0.5 and gaps.low < 0 < gaps.high < 1
    with pytest.raises(UsageError, match="infinite"):
        clustered_mean([[math.inf], [1.0]])
