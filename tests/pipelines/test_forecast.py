"""Forecasts: the formulas' own numbers, and what a scan of known problems must find."""

from __future__ import annotations

import numpy as np
import pytest

from ponder.pipelines.preflight.forecast import (
    expected_dead_share,
    fit_pass_rates,
    forecast_groups,
    forecast_run_time,
    smallest_group_size,
)


@pytest.mark.parametrize(
    ("a", "b", "n", "share"),
    [
        (1, 1, 8, 2 / 9),  # all pass rates alike: E[p^n] = 1 / (n + 1)
        (1, 1, 2, 2 / 3),
        (2, 2, 2, 0.6),  # E[p^2] = 2 * 3 / (4 * 5)
        (0.5, 0.5, 4, 2 * 35 / 128),  # the arcsine law: C(2n, n) / 4^n
        (1e9, 1e9, 8, 2 * 0.5**8),  # every problem has pass rate one half
        (1e-9, 1e-9, 8, 1.0),  # each is solved always or never
    ],
)
def test_expected_dead_share_of_beta(a: float, b: float, n: int, share: float) -> None:
    assert expected_dead_share(a, b, n) == pytest.approx(share, rel=1e-6)


def test_expected_dead_share_matches_simulation() -> None:
    p = np.random.default_rng(0).beta(0.3, 2.0, 200_000)
    assert expected_dead_share(0.3, 2.0, 8) == pytest.approx(np.mean(p**8 + (1 - p) ** 8), abs=2e-3)


@pytest.mark.parametrize("shape", [(0.5, 0.5), (1.0, 1.0), (0.3, 3.0), (3.0, 0.3), (8.0, 8.0)])
def test_fit_pass_rates_recovers_distribution(shape: tuple[float, float]) -> None:
    """The truth lies in the 90 % range about as often as that says, and the estimate is near it."""
    draw = np.random.default_rng(1)
    inside, off = 0, []
    for _ in range(12):
        passes = draw.binomial(8, draw.beta(*shape, 32))
        result = fit_pass_rates([8] * 32, passes.tolist())
        expected, low, high = result.dead_share(16)  # at another size than was scanned
        truth = expected_dead_share(*shape, 16)
        inside += low <= truth <= high
        off.append(expected - truth)
    assert inside >= 9 and abs(np.mean(off)) < 0.05


def test_more_problems_narrow_the_range() -> None:
    few, many = (fit_pass_rates([8] * k, [4] * k).dead_share(8) for k in (4, 64))
    assert many[2] - many[1] < few[2] - few[1]
    assert fit_pass_rates([8] * 64, [4] * 64).mean() == pytest.approx(0.5)


def test_unsolved_problems_predict_dead_groups() -> None:
    """Nothing right in 256 samples: no group size that is offered would save it."""
    result = forecast_groups([[0.0] * 8] * 32)
    assert result is not None and result.pass_rate == 0 and result.observed == 1
    assert result.expected > 0.95 and result.by_n[64] > 0.9 and smallest_group_size(result, 0.5) is None


def test_forecast_of_two_rewards() -> None:
    result = forecast_groups([[1.0, 0.0, 0.0, 0.0]] * 10 + [[0.0] * 4] * 10)
    assert result is not None and result.n == 4
    assert result.pass_rate == 0.125 and result.observed == 0.5 and result.low < result.expected < result.high
    assert list(result.by_n) == [2, 4, 8, 16, 32, 64]
    shares = list(result.by_n.values())
    assert shares == sorted(shares, reverse=True), "more samples, fewer groups without a gradient"
    assert smallest_group_size(result, 1.0) == 2 and smallest_group_size(result, shares[3]) == 16
    shifted = forecast_groups([[0.5, -0.5, -0.5, -0.5]] * 10 + [[-0.5] * 4] * 10)
    assert shifted is not None and shifted.by_n == result.by_n, "only which rewards are equal counts"


def test_forecast_of_rewards_that_differ_by_rounding() -> None:
    result = forecast_groups([[0.1 + 0.2, 0.3, 0.3, 0.3]] * 5 + [[1.0, 0.3, 0.3, 0.7 + 0.2 + 0.1]] * 5)
    assert result is not None and result.observed == 0.5 and result.pass_rate == 0.25
    assert result == forecast_groups([[0.3] * 4] * 5 + [[1.0, 0.3, 0.3, 1.0]] * 5)


def test_no_forecast_for_many_rewards() -> None:
    assert forecast_groups([]) is None and forecast_groups([[]]) is None
    assert forecast_groups([[0.1, 0.5, 1.0]]) is None, "three kinds of rewards are no coin"
    solved = forecast_groups([[1.0] * 4] * 8)
    assert solved is not None and solved.pass_rate == 1 and solved.expected > 0.8
    unequal = forecast_groups([[1.0, 0.0], [1.0]])
    assert unequal is not None and unequal.n == 2, "an undecided answer is missing from its group"


def test_forecast_run_time() -> None:
    result = forecast_run_time(100, [3.0, 2.0], [2.0, 1.0], [1.0, 1.0], 0.0, 1.0)
    assert (
        (result.expected, result.low, result.high) == (300.0, 300.0, 500.0)
        and result.had_gradient
        and not result.completions_may_grow
    )
    result = forecast_run_time(100, [3.0, 2.0], [2.0, 1.0], [0.5, 0.25], 8.0, 4.0)
    assert result.low == 300 and result.high == 100 * (3 + 2 + 8 / 2) * 4 and result.completions_may_grow
    assert not forecast_run_time(10, [1.0], [0.0], [0.0], 2.0, 1.0).had_gradient
