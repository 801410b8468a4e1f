"""The formulas of a tree search, against numbers worked out elsewhere: by hand, and by mctx 0.0.71 on jax 0.10.2."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import trace_group
from ponder.errors import UsageError
from ponder.reason.operators.backpropagate import DiscountedBackup, MeanBackup, backpropagate
from ponder.reason.operators.tree_policy import (
    PUCT,
    UCT,
    X1,
    DirichletNoise,
    ProgressiveWidening,
    open_children,
    select_child,
    set_priors,
    softmax_priors,
)
from ponder.reason.strategies.mcts_parallel import DetachedBranch
from ponder.types import Step, Trace, ids


def test_uct_equals_its_formula() -> None:
    # N = 1 + 3 + 5: ln 9 = 2.197225; sqrt(2.197225 / 3) = 0.855808, sqrt(2.197225 / 5) = 0.662906
    result = UCT(2.0).scores(9, 0.5, [3, 0, 5], [0.2, 0.0, 0.7], [0.1] * 3)
    assert result == pytest.approx([0.2 + 2 * 0.855808, math.inf, 0.7 + 2 * 0.662906], abs=1e-5)


# n, q, p, the parent's value; what mctx's muzero_action_selection compares (without its tie-breaking noise) with
# qtransform_by_parent_and_siblings, and with qtransform_by_min_max from -1 to 1; what it selects with each.
MCTX = [
    ([3, 0, 5], [0.2, 0.0, 0.7], [0.5, 0.3, 0.2], 0.45,
     [0.46894, 1.12546, 1.12505], [1.06894, 1.12546, 0.97505], 1, 1),
    ([10, 2, 0, 1], [-0.3, 0.4, 0.0, 0.9], [0.1, 0.2, 0.3, 0.4], 0.05,
     [0.04254, 0.89533, 1.40398, 1.93599], [0.39254, 1.012, 1.40398, 1.88599], 3, 3),
    ([0, 0], [0.0, 0.0], [0.6, 0.4], 0.3, [0.75006, 0.50004], [0.75006, 0.50004], 0, 0),
    ([1000, 500], [0.51, 0.5], [0.05, 0.95], 0.5, [1.00256, 0.09724], [0.75756, 0.84724], 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(("n", "q", "p", "value", "siblings", "fixed", "first", "second"), MCTX)
def test_puct_equals_mctx(
    n: list[int], q: list[float], p: list[float], value: float, siblings: list[float], fixed: list[float],
    first: int, second: int,
) -> None:  # fmt: skip
    for rule, numbers, pick in ((PUCT(), siblings, first), (PUCT(low=-1, high=1), fixed, second)):
        assert rule.scores(1 + sum(n), value, n, q, p) == pytest.approx(numbers, abs=2e-5)
        trace = flat(n, q, p)
        trace.steps[0].value = value
        assert select_child(trace, 0, open_children(trace, 0), rule) == 1 + pick


def test_x1_equals_its_formula() -> None:
    # sqrt(8) / (1 + n) (1.25 + log(19661 / 19652)): 3.536829 / 4 and 3.536829 / 6; q scaled from -1..1
    weight = math.sqrt(8) * (1.25 + math.log(19661 / 19652))
    assert weight == pytest.approx(3.536829, abs=1e-5)
    result = X1(low=-1, high=1).scores(9, 0.0, [3, 5], [0.2, -1.0], [0.9, 0.1])
    assert result == pytest.approx([0.6 + 3.536829 / 4, 0.0 + 3.536829 / 6], abs=1e-5)
    assert X1().scores(1, 0.0, [1, 1], [0.2, 0.4], [1, 0]) == [0.2, 0.4], "after one visit, by value alone"


def flat(n: Sequence[int], q: Sequence[float], p: Sequence[float] | None = None) -> Trace:
    trace = trace_group([1], [[2]] * len(n))
    for step, x, y, prior in zip(trace.steps[1:], n, q, p or [1.0] * len(n), strict=True):
        step.visits, step.value, step.prior = x, y, prior
    trace.steps[0].visits = 1 + sum(n)
    return trace


def test_simulation_in_flight_counts_as_a_loss() -> None:
    trace = flat([2, 2], [0.6, 0.5])
    rule = UCT(0.0)
    assert select_child(trace, 0, [1, 2], rule) == 1
    # (0.6 * 2 + 0 * 1) / 3 = 0.4 < 0.5
    assert select_child(trace, 0, [1, 2], rule, {1: 1}, 0.0) == 2
    # (0.6 * 2 + 0.45 * 1) / 3 = 0.55 > 0.5
    assert select_child(trace, 0, [1, 2], rule, {1: 1}, 0.45) == 1
    assert select_child(trace, 0, [1, 2], rule, {1: 1}, None) == 1, "only a visit"
    # only visits: ln 10 = 2.3026; 0.6 + sqrt(2.3026 / 7) = 1.1735, 0.5 + sqrt(2.3026 / 2) = 1.5730
    assert select_child(trace, 0, [1, 2], UCT(1.0), {1: 5}, None) == 2


def test_rollouts_pruned_and_meta_steps_are_not_selected() -> None:
    trace = flat([0] * 4, [0.0] * 4)
    trace.steps[1].last, trace.steps[2].pruned, trace.steps[3].meta = True, "empty", True
    assert open_children(trace, 0) == [4]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: UCT(-1),
        lambda: UCT(math.nan),
        lambda: PUCT(low=0),
        lambda: PUCT(low=1, high=1),
        lambda: X1(low=2, high=1),
        lambda: PUCT(c1=math.inf),
        lambda: DiscountedBackup(gamma=0),
        lambda: DiscountedBackup(learning_rate=2),
        lambda: DirichletNoise(alpha=0),
        lambda: DirichletNoise(fraction=2),
        lambda: DirichletNoise(seed=-1),
        lambda: ProgressiveWidening(k=0),
        lambda: ProgressiveWidening(alpha=2),
    ],
)
def test_invalid_settings_are_refused(bad: object) -> None:
    with pytest.raises(UsageError):
        bad()  # type: ignore[operator]


@given(st.lists(st.lists(st.floats(-50, 0), min_size=1, max_size=4), min_size=1, max_size=6), st.floats(0.1, 5))
def test_priors_are_normalised_sequence_probabilities(rows: list[list[float]], temperature: float) -> None:
    trace = trace_group([1], [[2] * len(r) for r in rows])
    for step, row in zip(trace.steps[1:], rows, strict=True):
        step.logprobs = np.array(row, np.float32)
    set_priors(trace, range(1, len(rows) + 1), temperature)
    result = np.array([s.prior for s in trace.steps[1:]])
    likely = np.exp(np.array([sum(r) for r in rows]) / temperature - max(sum(r) for r in rows) / temperature)
    np.testing.assert_allclose(result, likely / likely.sum(), rtol=1e-4, atol=1e-7)


def test_priors_are_equal_without_logprobs() -> None:
    assert softmax_priors([math.nan, -1.0]) == [0.5, 0.5]
    assert softmax_priors([-math.inf, -math.inf]) == [0.5, 0.5]
    assert softmax_priors([-math.inf, -1.0]) == [0.0, 1.0]
    assert softmax_priors([]) == []


def test_noise_is_seeded_and_keeps_the_sum() -> None:
    priors = [0.7, 0.2, 0.1]
    noised = DirichletNoise(0.3, 0.25, seed=1).add_to(priors)
    assert (
        noised == DirichletNoise(0.3, 0.25, seed=1).add_to(priors) != DirichletNoise(0.3, 0.25, seed=2).add_to(priors)
    )
    assert sum(noised) == pytest.approx(1) and all(x >= 0.75 * p for x, p in zip(noised, priors, strict=True))
    assert DirichletNoise(fraction=0).add_to(priors) == priors


def test_progressive_widening_bounds_children() -> None:
    assert [ProgressiveWidening(1, 0.5).max_children(n) for n in (0, 1, 4, 5, 9, 10)] == [1, 1, 2, 3, 3, 4]
    assert ProgressiveWidening(2, 0.5).max_children(9) == 6 and ProgressiveWidening(3, 0).max_children(100) == 3


def chain() -> Trace:
    """0 - 1 - 2 - (3, 4)"""
    trace = flat([0], [0.0])
    trace.steps[0].visits = 0
    for parent in (1, 2, 2):
        trace.add(Step(parent, "", ids([1]), np.zeros(1, np.float32)))
    return trace


def test_mean_backup_alternates_sign_between_players() -> None:
    for two, signs in ((False, [1, 1, 1, 1]), (True, [-1, 1, -1, 1])):
        trace = chain()
        for value in (0.5, -1.0):
            backpropagate(trace, [(3, value)], MeanBackup(), two_player=two)
        assert [s.visits for s in trace.steps] == [2, 2, 2, 2, 0]
        assert [s.value for s in trace.steps[:4]] == pytest.approx([s * -0.25 for s in signs])
    trace = chain()
    backpropagate(trace, [(3, 0.5), (4, 0.1)], MeanBackup())
    assert [s.visits for s in trace.steps] == [1, 1, 1, 1, 1] and trace.steps[0].value == pytest.approx(0.3)
    backpropagate(trace, [], MeanBackup())
    assert trace.steps[0].visits == 1


def test_x1_discounts_the_mean_of_the_children() -> None:
    trace = chain()
    backpropagate(trace, [(3, 0.5), (4, 0.1)], DiscountedBackup(0.9, 0.5))
    # 0.5 0 + 0.5 0.9 0.3 = 0.135 at step 2, and of that 0.5 0.9 at step 1
    assert trace.steps[2].value == pytest.approx(0.135) and trace.steps[2].visits == 1
    assert trace.steps[1].value == pytest.approx(0.5 * 0.9 * 0.135)
    backpropagate(trace, [(3, 0.5)], DiscountedBackup(0.9, 0.5))
    # (2 0.5 + 0.1) / 3 = 0.366667; 0.5 0.135 + 0.45 0.366667 = 0.2325
    assert trace.steps[2].value == pytest.approx(0.2325)


def test_detached_branch_is_merged_back() -> None:
    trace = flat([1, 1], [0.1, 0.2])
    trace.add(Step(1, "x", ids([7])))
    branch = DetachedBranch.at(trace, 1)
    assert branch.trace.token_ids(branch.tip).tolist() == trace.token_ids(1).tolist()
    assert [branch.trace.steps[i].text for i in branch.trace.children(branch.tip)] == ["x"]
    fresh = branch.trace.add(Step(branch.tip, "y", ids([8])))
    branch.trace.add(Step(fresh, "z", ids([9])))
    branch.trace.steps[branch.tip].pruned = "mine"
    elsewhere = trace.add(Step(2, "o", ids([5])))
    trace.steps[0].pruned = "theirs"
    places = branch.merge_into(trace)
    assert [trace.steps[i].text for i in trace.children(1)] == ["x", "y"] and elsewhere == 4
    assert trace.text(places[-1]) == "yz" and trace.steps[1].pruned == "mine" and trace.steps[0].pruned == "theirs"
