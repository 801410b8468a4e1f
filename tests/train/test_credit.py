"""Advantages: the worked numbers, and the mistakes others have shipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import group
from ponder.errors import UsageError
from ponder.train import credit
from ponder.types import Score, Step, ids

REWARDS = st.lists(st.floats(-100, 100, allow_nan=False, width=32), min_size=2, max_size=16)


def test_worked_numbers() -> None:
    eight = credit.group_relative([1, 1, 1, 0, 0, 0, 0, 0])
    assert np.round(eight, 3).tolist() == [1.291] * 3 + [-0.775] * 5
    many = credit.group_relative([1] * 24 + [0] * 40)
    assert np.allclose(many[[0, -1]], eight[[0, -1]], rtol=1e-12), "the same ratio, the same advantages"
    bessel = credit.group_relative([1, 1, 1, 1, 0, 0, 0, 0], bessel=True)
    assert np.round(bessel, 3).tolist() == [0.935] * 4 + [-0.935] * 4
    assert credit.group_relative([3.5, -2.0]).tolist() == [1.0, -1.0]
    assert credit.group_relative([1, 0, 0, 0], scale=False).tolist() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, 1.0, 0.0, -0.3, 1e-30, 1e30])
@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_equal_rewards_are_exactly_zero(reward: float, count: int) -> None:
    assert not credit.group_relative([reward] * count).any()


def test_an_epsilon_would_not_do() -> None:
    r = np.full(7, 0.1, np.float32)
    naive = (r - r.mean()) / (r.std() + np.float32(1e-9))
    assert np.abs(naive).max() > 0.5, "these are the rewards that catch it"
    assert not credit.group_relative(r.tolist()).any()


@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_a_group_of_one_is_refused(rewards: list[float]) -> None:
    with pytest.raises(UsageError, match="group of one has no baseline"):
        credit.group_relative(rewards)


@given(REWARDS, st.booleans(), st.booleans())
def test_advantages_sum_to_zero(rewards: list[float], scale: bool, bessel: bool) -> None:
    found = credit.group_relative(rewards, scale, bessel)
    assert np.isfinite(found).all()
    assert abs(found.sum()) <= 1e-6 * max(1.0, np.abs(found).max()) * len(rewards)


@given(REWARDS.filter(lambda r: np.std(r) > 1e-3), st.floats(0.1, 50), st.floats(-10, 10))
def test_advantages_do_not_depend_on_unit_or_offset(rewards: list[float], unit: float, offset: float) -> None:
    moved = credit.group_relative([unit * r + offset for r in rewards])
    assert np.allclose(moved, credit.group_relative(rewards), atol=1e-6)


def test_every_token_gets_its_completion_s_advantage() -> None:
    trace = group([5, 6], [[1, 2, 3], [4], [5, 6]], [1.0, 0.0, 0.0])
    credit.grpo(trace, "wanted")
    expected = (np.array([1, 0, 0]) - 1 / 3) / np.std([1, 0, 0])
    for step, advantage in zip(trace.steps[1:], expected, strict=True):
        assert step.advantages is not None and step.advantages.dtype == np.float32
        assert np.allclose(step.advantages, np.full(len(step.token_ids), advantage))
    assert trace.steps[0].advantages is None, "nobody wrote the prompt"


def test_undecided_is_not_zero() -> None:
    trace = group([5], [[1], [2], [3], [4]], [1.0, None, 0.0, None])
    trace.steps[4].scores.clear()  # never scored at all
    credit.grpo(trace, "wanted")
    assert [s.advantages is None for s in trace.steps[1:]] == [False, True, False, True]
    assert [float(trace.steps[i].advantages[0]) for i in (1, 3)] == [1.0, -1.0], "the baseline is of the judged alone"

    wrong = group([5], [[1], [2], [3], [4]], [1.0, 0.0, 0.0, 0.0])  # what a silent 0 would have given
    credit.grpo(wrong, "wanted")
    assert float(wrong.steps[1].advantages[0]) == pytest.approx(1.732, abs=1e-3)


def test_one_judged_completion_earns_nothing() -> None:
    trace = group([5], [[1], [2]], [1.0, None])
    credit.grpo(trace, "wanted")
    assert all(s.advantages is None for s in trace.steps)


def test_a_group_that_was_sampled_once_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 2 completions"):
        credit.grpo(group([5], [[1]], [1.0]), "wanted")


def test_groups_follow_the_prompt_instance() -> None:
    """The same question twice is two groups: each has its own baseline."""
    twins = [group([5, 6], [[1], [2]], [1.0, 0.0], "same"), group([5, 6], [[1], [2]], [1.0, 1.0], "same")]
    for trace in twins:
        credit.grpo(trace, "wanted")
    found = [[float(s.advantages[0]) for s in t.steps[1:]] for t in twins]
    assert found == [[1.0, -1.0], [0.0, 0.0]]


def test_imitation_credits_answers_and_nothing_else() -> None:
    trace = group([5], [[1, 2]])
    trace.add(Step(1, "tool output", ids([7, 8])))
    trace.add(Step(2, "the end", ids([9, 2]), stop="eos"))
    credit.imitate(trace)
    assert [s.advantages is None for s in trace.steps] == [True, True, True, False]
    assert trace.steps[3].advantages.tolist() == [1.0, 1.0]


def test_a_scorer_s_value_of_nan_is_caught() -> None:
    trace = group([5], [[1], [2]], [1.0, 0.0])
    trace.steps[2].scores["wanted"] = Score(float("nan"))
    credit.grpo(trace, "wanted")
    given_credit = [s.advantages for s in trace.steps[1:]]
    assert all(a is None or np.isfinite(a).all() for a in given_credit), "NaN must not reach a whole group"
