"""Allocation, options, economics and routing against brute force over all decisions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.measure import (
    StrategyOption,
    TrainOrThink,
    allocate_samples,
    choose_strategies,
    cost_for_quality,
    coverage_from_beta,
    coverage_from_counts,
    coverage_from_rates,
    pareto_frontier_with_intervals,
    pass_at_k,
    replay_allocation,
    routing_curve,
    train_or_think,
    wilson,
)


@given(st.lists(st.integers(0, 10).map(lambda x: x / 10), min_size=1, max_size=4), st.integers(0, 9))
def test_greedy_allocation_is_optimal(rates: list[float], budget: int) -> None:
    rows = coverage_from_rates(rates, 9)
    split = allocate_samples(rows, budget)
    assert split.sum() == budget
    result = sum(rows[i, m] for i, m in enumerate(split))
    every = itertools.product(range(budget + 1), repeat=len(rates))
    best = max(sum(rows[i, m] for i, m in enumerate(way)) for way in every if sum(way) == budget)
    assert result == pytest.approx(best, abs=1e-12)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3), st.integers(1, 8))
def test_greedy_is_optimal_for_beliefs_and_logs(beliefs: list[tuple[int, int]], budget: int) -> None:
    a, b = [x for x, _ in beliefs], [y for _, y in beliefs]
    for rows in (coverage_from_beta(a, b, 8), coverage_from_counts([x + y + 6 for x, y in beliefs], a, 8)):
        split = allocate_samples(rows, budget)
        every = itertools.product(range(budget + 1), repeat=len(a))
        best = max(sum(rows[i, m] for i, m in enumerate(way)) for way in every if sum(way) == budget)
        assert sum(rows[i, m] for i, m in enumerate(split)) == pytest.approx(best, abs=1e-12)


def test_coverage_of_beliefs_is_the_mean_over_them() -> None:
    drawn = np.random.default_rng(0).beta(2.0, 5.0, size=400_000)
    rows = coverage_from_beta([2.0], [5.0], 6)
    assert rows[0] == pytest.approx([np.mean(1 - (1 - drawn) ** m) for m in range(7)], abs=2e-3)
    assert coverage_from_counts(20, [5], 6)[0, 1:] == pytest.approx(pass_at_k(20, 5, np.arange(1, 7)))
    assert coverage_from_rates([1.0, 0.0], 2).tolist() == [[0, 1, 1], [0, 0, 0]]


def test_allocation_beats_equal_shares_on_replayed_samples() -> None:
    rng = np.random.default_rng(1)
    rate = rng.beta(0.5, 1.0, size=300)
    seen = rng.binomial(8, rate)  # eight samples to judge difficulty on
    right = rng.binomial(64, rate)  # others to try it on
    split = allocate_samples(coverage_from_beta(seen + 0.5, 8 - seen + 1.0, 64), 300 * 8)
    result = replay_allocation(split, 64, right)
    assert result.budget == 2400 and result.best_coverage >= result.allocated_coverage > result.uniform_coverage
    assert (
        result.gain == result.allocated_coverage - result.uniform_coverage > 0.02
        and result.regret == result.best_coverage - result.allocated_coverage > 0
    )
    assert result.uniform_coverage == pytest.approx(pass_at_k(64, right, 8).mean())
    knowing = replay_allocation(allocate_samples(coverage_from_counts(64, right, 64), 2400), 64, right)
    assert knowing.regret == pytest.approx(0, abs=1e-12)


def test_equal_shares_of_a_budget_that_does_not_divide() -> None:
    result = replay_allocation([3, 0], 4, [2, 1])  # one of two gets 2, the other 1, drawn at random
    each = pass_at_k(4, [2, 1], [1, 2])
    assert result.uniform_coverage == pytest.approx(each.mean())


def test_a_million_samples_are_allocated_quickly() -> None:
    split = allocate_samples(coverage_from_rates(np.random.default_rng(0).random(2000), 500), 500_000)
    assert split.sum() == 500_000


def test_allocation_refuses() -> None:
    with pytest.raises(UsageError, match="use choose"):
        allocate_samples([[0.0, 0.1, 0.5]], 1)
    with pytest.raises(UsageError, match="does not fit"):
        allocate_samples([[0.0, 0.1]], 2)
    with pytest.raises(UsageError, match=r"in \[0, 1\]"):
        coverage_from_rates([1.2], 4)
    with pytest.raises(UsageError, match="add 1"):
        coverage_from_beta([0], [3], 4)
    with pytest.raises(UsageError, match="cannot be replayed"):
        coverage_from_counts([3, 9], [1, 1], 4)
    with pytest.raises(UsageError, match="more samples than were logged"):
        replay_allocation([5], 4, [1])


OPTIONS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 8)).map(lambda o: StrategyOption("o", float(o[0]), o[1] / 8)),
    min_size=1,
    max_size=4,
)


@given(st.lists(OPTIONS, min_size=1, max_size=4), st.integers(0, 14))
@settings(max_examples=150)
def test_choosing_options_against_all_choices(problems: list[list[StrategyOption]], budget: int) -> None:
    ways = [w for w in itertools.product(*problems) if sum(o.cost for o in w) <= budget]
    if not ways:
        with pytest.raises(UsageError, match="cheapest options"):
            choose_strategies(problems, budget)
        return
    best = max(sum(o.success_probability for o in w) for w in ways)
    exact, quick = choose_strategies(problems, budget, exact=True), choose_strategies(problems, budget)
    assert exact.success == pytest.approx(best) and exact.cost <= budget
    assert quick.cost <= budget and quick.success <= best + 1e-9 <= quick.upper_bound + 2e-9
    assert all(o in options for o, options in zip(quick.options, problems, strict=True))


def test_many_problems_are_near_the_bound() -> None:
    """Samples, length and checks as options: 200 problems come within one option of the bound."""
    rng = np.random.default_rng(0)
    problems = []
    for p in rng.random(200):
        ways = itertools.product((1, 2, 4, 8), (1.0, 2.0), (0, 1))
        problems.append([StrategyOption("skip", 0.0, 0.0)] + [
            StrategyOption(f"{m} samples, {length:g} long, {checks} checks", m * length + checks,
                   (1 - (1 - p * (0.7 + 0.15 * length)) ** m) * (0.9 + 0.1 * checks))
            for m, length, checks in ways
        ])  # fmt: skip
    result = choose_strategies(problems, 700.0)
    assert 699 <= result.cost <= 700 and 0 <= result.upper_bound - result.success < 0.1
    equal = sum(max(o.success_probability for o in options if o.cost <= 3.5) for options in problems)
    assert result.success > equal
    with pytest.raises(UsageError, match="at least one option"):
        choose_strategies([[]], 1)
    with pytest.raises(UsageError, match="known success"):
        StrategyOption("x", 1.0, math.nan)


def test_train_or_think() -> None:
    both = TrainOrThink(training_cost=1000.0, trained_query_cost=0.001, thinking_query_cost=0.011)
    assert both.break_even_queries == pytest.approx(100_000)
    assert [both.cheaper_side(v) for v in (0, 99_000, 101_000)] == ["think", "think", "train"]
    assert both.cost(200_000) == pytest.approx((1200.0, 2200.0))
    assert TrainOrThink(1000, 0.02, 0.01).break_even_queries == math.inf
    assert TrainOrThink(1000, None, 0.01).cheaper_side(10**9) == "think"
    assert (
        TrainOrThink(1000, 0.01, None).cheaper_side(1) == "train"
        and TrainOrThink(1000, 0.01, None).break_even_queries == 0
    )
    assert TrainOrThink(1000, None, None).cheaper_side(5) == "neither"
    with pytest.raises(UsageError):
        TrainOrThink(-1, 0.1, 0.1)
    with pytest.raises(UsageError):
        both.cost(-1)


def test_equal_quality_is_read_from_curves() -> None:
    assert cost_for_quality(0.5, [1, 100], [0.4, 0.6]) == pytest.approx(10)
    assert cost_for_quality(0.4, [1, 100], [0.4, 0.6]) == 1
    assert cost_for_quality(0.7, [1, 100], [0.4, 0.6]) is None
    assert cost_for_quality(0.5, [1, 10, 100], [0.4, 0.3, 0.6]) == pytest.approx(10)  # the dip need not be bought
    result = train_or_think(0.5, 99.0, ([1, 10], [0.5, 0.9]), ([1, 100], [0.4, 0.6]))
    assert (result.trained_query_cost, result.thinking_query_cost) == pytest.approx(
        (1, 10)
    ) and result.break_even_queries == pytest.approx(11)
    with pytest.raises(UsageError, match="qualities known"):
        cost_for_quality(math.nan, [1, 2], [0.1, 0.6])
    with pytest.raises(UsageError, match="above 0"):
        cost_for_quality(0.5, [0, 1], [0.1, 0.6])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=6),
    st.booleans(),
)
@settings(max_examples=60)
def test_routing_over_all_orders(queries: list[tuple[int, int, int]], cascade: bool) -> None:
    """Equal signals in every order: the mean area is the curve's; and no order beats the oracle's."""
    signal, weak, strong = (list(column) for column in zip(*queries, strict=True))
    result = routing_curve(signal, weak, strong, 1.0, 5.0, cascade)
    size, areas = len(queries), {}
    for order in itertools.permutations(range(size)):
        quality = [sum(strong[i] for i in order[:j]) + sum(weak[i] for i in order[j:]) for j in range(size + 1)]
        areas[order] = sum((a + b) / 2 for a, b in itertools.pairwise(quality)) / size**2
    sorted_ones = [a for order, a in areas.items() if all(signal[i] >= signal[j] for i, j in itertools.pairwise(order))]
    assert result.area == pytest.approx(np.mean(sorted_ones))
    assert result.random_area == pytest.approx(np.mean(list(areas.values())))
    assert result.oracle_area == pytest.approx(max(areas.values()))
    assert (result.cost[0], result.cost[-1]) == pytest.approx((1.0, 6.0 if cascade else 5.0))


def test_routing_reads_well() -> None:
    gain = np.random.default_rng(0).random(100)
    perfect = routing_curve(gain.tolist(), [0.0] * 100, gain.tolist(), 1, 2)
    assert (
        perfect.recovered_share == pytest.approx(1)
        and perfect.quality_at(1.0) == 0
        and perfect.quality_at(2.0) == pytest.approx(gain.mean())
    )
    assert routing_curve([0.0] * 100, [0.0] * 100, gain.tolist(), 1, 2).recovered_share == pytest.approx(0)
    assert math.isnan(routing_curve([1, 2], [0, 0], [1, 1], 1, 2).recovered_share)
    with pytest.raises(UsageError, match="outside the curve"):
        perfect.quality_at(3.0)
    with pytest.raises(UsageError, match="cost more"):
        routing_curve([1], [0], [1], 2, 1)
    with pytest.raises(UsageError, match="1 of 2 queries have no signal"):
        routing_curve([1, None], [0, 0], [1, 1], 1, 2)


def test_lists_that_do_not_belong_together_are_told() -> None:
    with pytest.raises(UsageError, match="one cost for all queries"):
        routing_curve([1, 2], [0, 1], [1, 1], [1, 2, 3], 5)
    with pytest.raises(UsageError, match="logs of those"):
        replay_allocation([1, 1], [2, 2, 2], [1, 1, 1])
    with pytest.raises(UsageError, match="does not fit"):
        allocate_samples([[0, 0.5], [0, 0.5]], math.nan)  # type: ignore[arg-type]
    assert cost_for_quality(0.5, np.array([1.0, 2.0]), np.array([0.5, 0.9])) == 1.0


def test_a_place_on_the_frontier_is_never_certain() -> None:
    (place,) = pareto_frontier_with_intervals(["a"], [[1.0, 2.0, 3.0]], [[1.0, 1.0, 1.0]])
    assert place.quality_interval == pytest.approx(wilson(3, 3))
    (one,) = pareto_frontier_with_intervals(["a"], [[2.0]], [[0.5]])
    assert math.isnan(one.cost_interval[0]), "one problem says nothing of what others cost"
    assert one.quality_interval == pytest.approx((0.0125, 0.9875))
