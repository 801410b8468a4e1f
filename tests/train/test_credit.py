"""Advantages: the worked numbers, properties that hold for all rewards, and the mistakes others have shipped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import trace_group
from ponder.errors import UsageError
from ponder.train import credit
from ponder.train.policy_gradient import DAPO, GRPO, RLOO
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from ponder.verify.rewards.token_length import soft_overlong_penalty

REWARD = st.floats(-100, 100, allow_nan=False, width=32).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
REWARDS = st.lists(REWARD, min_size=2, max_size=16)
APART = REWARDS.filter(lambda r: np.std(r) > 1e-3)
NUMBERS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8)
Rule = Callable[[list[float]], np.ndarray]
RULES: list[Rule] = [
    lambda r: credit.group_relative(r),
    lambda r: credit.group_relative(r, bessel=True),
    lambda r: credit.group_relative(r, divide_by_std=False),
    credit.leave_one_out,
]


# Groups


def test_group_relative_worked_numbers() -> None:
    eight = credit.group_relative([1, 1, 1, 0, 0, 0, 0, 0])
    assert np.round(eight, 3).tolist() == [1.291] * 3 + [-0.775] * 5
    many = credit.group_relative([1] * 24 + [0] * 40)
    np.testing.assert_allclose(many[[0, -1]], eight[[0, -1]], rtol=1e-12, err_msg="the same ratio, the same advantages")
    bessel = credit.group_relative([1, 1, 1, 1, 0, 0, 0, 0], bessel=True)
    assert np.round(bessel, 3).tolist() == [0.935] * 4 + [-0.935] * 4
    assert credit.group_relative([3.5, -2.0]).tolist() == [1.0, -1.0]
    assert credit.group_relative([1, 0, 0, 0], divide_by_std=False).tolist() == [0.75, -0.25, -0.25, -0.25]
    assert credit.leave_one_out([1, 0, 0, 0]).tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


@given(APART, st.booleans())
def test_group_relative_is_its_formula(rewards: list[float], bessel: bool) -> None:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - bessel))
    expected = [(r - mean) / std for r in rewards]
    np.testing.assert_allclose(credit.group_relative(rewards, bessel=bessel), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        credit.group_relative(rewards, divide_by_std=False), [r - mean for r in rewards], rtol=1e-9, atol=1e-9
    )


@given(REWARDS)
def test_leave_one_out_is_its_formula(rewards: list[float]) -> None:
    expected = [r - sum(x for j, x in enumerate(rewards) if j != i) / (len(rewards) - 1) for i, r in enumerate(rewards)]
    np.testing.assert_allclose(credit.leave_one_out(rewards), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
@given(REWARDS, st.randoms(use_true_random=False))
def test_group_advantages_sum_to_zero_in_any_order(rule: Rule, rewards: list[float], random: Random) -> None:
    result = rule(rewards)
    assert np.isfinite(result).all()
    assert abs(result.sum()) <= 1e-9 * max(1.0, np.abs(result).max()) * len(rewards) + 1e-6 * np.ptp(result)
    order = list(range(len(rewards)))
    random.shuffle(order)
    np.testing.assert_allclose(rule([rewards[i] for i in order]), result[order], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
@given(APART, st.floats(-10, 10))
def test_reward_offset_does_not_change_advantages(rule: Rule, rewards: list[float], offset: float) -> None:
    np.testing.assert_allclose(rule([r + offset for r in rewards]), rule(rewards), rtol=1e-6, atol=1e-8)


@given(APART, st.floats(0.1, 50))
def test_reward_scale_does_not_change_normalised_advantages(rewards: list[float], unit: float) -> None:
    more = [unit * r for r in rewards]
    np.testing.assert_allclose(credit.group_relative(more), credit.group_relative(rewards), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(credit.leave_one_out(more), unit * credit.leave_one_out(rewards), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", RULES)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.1 + 0.2, 1 / 3]), st.integers(2, 64))
def test_equal_rewards_give_exactly_zero(rule: Rule, reward: float, count: int) -> None:
    assert not rule([reward] * count).any()


NORMALISING: list[Rule] = [*RULES[:2], lambda r: np.concatenate(credit.whiten([np.array(r[:1]), np.array(r[1:])]))]


@pytest.mark.parametrize("rule", [*RULES, *NORMALISING])
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9), st.integers(2, 8), st.randoms(use_true_random=False))
def test_rewards_that_differ_by_rounding_are_equal(rule: Rule, parts: list[float], count: int, random: Random) -> None:
    """Sums of the same numbers in another order."""
    large = [abs(x) + 1 for x in parts]
    sums = [sum(random.sample(large, len(large))) for _ in range(count)]
    assert not rule(sums).any() and credit.reward_std(sums) == 0


def test_unify_equal_leaves_values_that_are_equal_or_differ() -> None:
    parts = [0.1 + 0.2, 1.0, 0.3, -0.5, 1 - 1e-16, 0.0, -0.0, 1e-20, 0.3 + 1e-9]
    assert credit.unify_equal(parts) == [parts[0], 1.0, parts[0], -0.5, 1.0, 0.0, 0.0, 1e-20, parts[-1]]
    assert credit.unify_equal([]) == [] and credit.unify_equal([2.0]) == [2.0]


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_unify_equal_is_are_equal(parts: list[float], random: Random) -> None:
    sums = [sum(random.sample(parts, len(parts))) for _ in range(4)]
    for values in (sums, [*sums, sums[0] + 1]):
        assert (len(set(credit.unify_equal(values))) == 1) == credit.are_equal(values)


@pytest.mark.parametrize("rule", NORMALISING)
@pytest.mark.parametrize("unit", [1e-100, 1e-15, 1e-9, 1e-7, 1.0, 1e9])
def test_rewards_of_any_size_have_advantages(rule: Rule, unit: float) -> None:
    rewards = [1.0, 0.0, 0.25, 1.0]
    np.testing.assert_allclose(rule([unit * r for r in rewards]), rule(rewards), rtol=1e-12)
    close = [1 + 1e-9 * r for r in rewards]
    np.testing.assert_allclose(rule(close), rule(rewards), rtol=1e-6, atol=1e-6)


def test_rewards_too_small_for_a_std_have_no_advantage() -> None:
    assert not credit.group_relative([0.0, 1e-200]).any(), "their squares are 0"


def test_epsilon_in_std_would_not_give_zero() -> None:
    r = np.full(7, 0.1, np.float32)
    naive = (r - r.mean()) / (r.std() + np.float32(1e-9))
    assert np.abs(naive).max() > 0.5, "these are the rewards that catch it"
    assert not credit.group_relative(r.tolist()).any()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_a_group_of_one_is_refused(rule: Rule, rewards: list[float]) -> None:
    with pytest.raises(UsageError, match="group of one has no baseline"):
        rule(rewards)


# Tokens


@given(NUMBERS, st.floats(0, 1))
def test_rewards_to_go(rewards: list[float], gamma: float) -> None:
    expected = [sum(gamma ** (u - t) * rewards[u] for u in range(t, len(rewards))) for t in range(len(rewards))]
    np.testing.assert_allclose(credit.rewards_to_go(np.array(rewards), gamma), expected, rtol=1e-9, atol=1e-9)


@given(NUMBERS, NUMBERS, st.floats(0, 1), st.floats(0, 1))
def test_gae_is_its_double_sum(rewards: list[float], values: list[float], gamma: float, lam: float) -> None:
    r, v = (np.array(x[: min(len(rewards), len(values))]) for x in (rewards, values))
    count, after = len(r), [*v[1:], 0.0]
    delta = [r[t] + gamma * after[t] - v[t] for t in range(count)]
    expected = [sum((gamma * lam) ** (u - t) * delta[u] for u in range(t, count)) for t in range(count)]
    np.testing.assert_allclose(credit.gae(r, v, gamma, lam), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(credit.gae(r, v, gamma, 0.0), delta, rtol=1e-9, atol=1e-9, err_msg="TD")
    returns = [sum(gamma ** (u - t) * r[u] for u in range(t, count)) for t in range(count)]
    np.testing.assert_allclose(credit.gae(r, v, gamma, 1.0), returns - v, rtol=1e-9, atol=1e-8, err_msg="Monte Carlo")


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_whiten_is_over_all_parts(parts: list[list[float]]) -> None:
    result = credit.whiten([np.array(p) for p in parts])
    assert [len(p) for p in result] == [len(p) for p in parts]
    every = [x for p in parts for x in p]
    mean = sum(every) / len(every)
    std = math.sqrt(sum((x - mean) ** 2 for x in every) / len(every))
    if min(every) == max(every):
        assert not np.concatenate(result).any()
    elif std > 1e-6:
        np.testing.assert_allclose(np.concatenate(result), [(x - mean) / std for x in every], rtol=1e-6, atol=1e-6)


def test_whiten_of_empty_or_equal_values_is_zero() -> None:
    assert credit.whiten([]) == []
    assert not np.concatenate(credit.whiten([np.full(3, 0.1 + 0.2), np.full(4, 0.1 + 0.2)])).any()


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0), (99999, -1.0)],
)
def test_soft_overlong_penalty(length: int, expected: float) -> None:
    """DAPO's equation 13 at its corners, with the paper's 16384 + 4096."""
    assert soft_overlong_penalty(length, 20480, 4096) == pytest.approx(expected, abs=1e-12)
    assert soft_overlong_penalty(length, 20480, 0) == 0.0


# Traces

FLOATS = np.float32


def wrote(trace: Trace, parent: int, tokens: list[int], score: float | None = None, stop: str = "stop") -> int:
    step = Step(parent, "", ids(tokens), np.array([-0.1 * t for t in tokens], FLOATS), stop)  # type: ignore[arg-type]
    step.notes["reference"] = np.array([0.5 * t for t in tokens], FLOATS)
    if stop != "stop":
        step.scores["wanted"] = Score(score)
    return trace.add(step)


def prompt() -> Trace:
    return Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([1]))])


def with_tools() -> tuple[Trace, list[int]]:
    """One answer in three parts with a tool between them, and a short one."""
    trace = prompt()
    a = wrote(trace, 0, [2, 3])
    b = wrote(trace, trace.add(Step(a, "tool", ids([90, 91, 92]))), [4])
    c = wrote(trace, trace.add(Step(b, "tool", ids([93]))), [5, 6, 7], 1.0, "eos")
    return trace, [a, b, c, wrote(trace, 0, [8], 0.0, "eos")]


def marks(trace: Trace) -> list[list[float] | None]:
    return [None if s.advantages is None else [round(float(x), 6) for x in s.advantages] for s in trace.steps]


def test_scored_answers_leave_tool_output_out() -> None:
    trace, (a, b, c, d) = with_tools()
    long, short = credit.scored_answers(trace, "wanted")
    assert long.steps == (a, b, c) and long.leaf == c and long.length == 6 and long.reward == 1.0
    assert short.steps == (d,) and short.length == 1
    np.testing.assert_allclose(long.note("logprobs"), [-0.2, -0.3, -0.4, -0.5, -0.6, -0.7], rtol=1e-6)
    np.testing.assert_allclose(long.note("reference"), [1.0, 1.5, 2.0, 2.5, 3.0, 3.5])
    split = {i: part.tolist() for i, part in long.split(np.arange(6.0))}
    assert split == {a: [0, 1], b: [2], c: [3, 4, 5]}
    with pytest.raises(UsageError, match="each token's values"):
        long.note("values")


def test_gae_skips_tool_output() -> None:
    """Per-token credit of an answer in parts is that of the same answer without its tools."""
    trace, (a, b, c, _) = with_tools()
    long = credit.scored_answers(trace, "wanted")[0]
    r, v = np.array([0, 0, 0, 0, 0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    expected = credit.gae(r, v, 0.9, 0.8)
    credit.assign_to_tokens([long], [expected])
    result = np.concatenate([trace.steps[i].advantages for i in (a, b, c)])
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert [s.advantages is None for s in trace.steps] == [True, False, True, False, True, False, True]


@pytest.mark.parametrize("tool", [False, True])
def test_per_token_credit_refuses_a_shared_step(tool: bool) -> None:
    """Also where the parting of ways is a tool's output."""
    trace = prompt()
    here = wrote(trace, 0, [2])
    if tool:
        here = trace.add(Step(here, "tool", ids([90])))
    for score in (0.0, 1.0):
        wrote(trace, here, [3], score, "eos")
    items = credit.scored_answers(trace, "wanted")
    with pytest.raises(UsageError, match="do not branch"):
        credit.assign_to_tokens(items, [np.zeros(2), np.ones(2)])


def test_assign_to_answers() -> None:
    trace, (_, _, c, d) = with_tools()
    credit.assign_to_answers(trace, {c: 2.0, d: -1.0})
    assert marks(trace) == [None, [2.0, 2.0], None, [2.0], None, [2.0] * 3, [-1.0]]
    branched = prompt()
    top = wrote(branched, 0, [2, 3])
    leaves = [wrote(branched, top, [i], 0.0, "eos") for i in (4, 5, 6)]
    with pytest.raises(UsageError, match="tree credit"):
        credit.assign_to_answers(branched, dict(zip(leaves, (1.0, 0.0, -4.0), strict=True)))
    for leaf in leaves[1:]:
        branched.steps[leaf].pruned = "dull"
    credit.assign_to_answers(branched, {leaves[0]: 1.0})
    assert marks(branched)[:3] == [None, [1.0, 1.0], [1.0]], "what was pruned is no branch"


def a_tree() -> tuple[Trace, dict[str, int]]:
    """
    root .5 of six leaves: a .75 [b 1 (b1 1, b2 1), c .5 (c1 1, c2 0)], d 0 (d1 0, d2 0); one leaf is undecided, one
    goes nowhere.
    """
    trace, at = prompt(), {}
    at["a"] = wrote(trace, 0, [2, 2])
    at["b"], at["c"] = wrote(trace, at["a"], [3]), wrote(trace, at["a"], [4, 4, 4])
    at["d"] = wrote(trace, 0, [5])
    for name, parent, score in (
        ("b1", "b", 1.0), ("b2", "b", 1.0), ("c1", "c", 1.0), ("c2", "c", 0.0), ("d1", "d", 0.0), ("d2", "d", 0.0),
        ("none", "d", None),
    ):  # fmt: skip
        at[name] = wrote(trace, at[parent], [6], score, "eos")
    at["nowhere"] = wrote(trace, at["c"], [7])
    return trace, at


def test_tree_credit_values_and_advantages() -> None:
    trace, at = a_tree()
    credit.assign_tree_credit(trace, "wanted")
    expected = {"a": 0.25, "b": 0.25, "c": -0.25, "d": -0.5, "b1": 0, "b2": 0, "c1": 0.5, "c2": -0.5, "d1": 0, "d2": 0}
    for name, i in at.items():
        result = trace.steps[i].advantages
        if name in ("none", "nowhere"):
            assert result is None
        else:
            assert result.tolist() == [expected[name]] * len(trace.steps[i].token_ids)
    assert trace.steps[0].advantages is None


def test_tree_credit_of_treerl() -> None:
    """(V - V(root) + V - V(parent)) / sqrt(leaves below), once for each of those leaves."""
    trace, at = a_tree()
    credit.assign_tree_credit(trace, "wanted", treerl=True)
    expected = {
        "a": 4 * (0.25 + 0.25) / 2, "b": 2 * (0.5 + 0.25) / math.sqrt(2), "c": 2 * (0 - 0.25) / math.sqrt(2),
        "d": 2 * (-0.5 - 0.5) / math.sqrt(2), "b1": 0.5, "c1": 0.5 + 0.5, "c2": -0.5 - 0.5, "d1": -0.5,
    }  # fmt: skip
    for name, advantage in expected.items():
        np.testing.assert_allclose(trace.steps[at[name]].advantages, advantage, rtol=1e-6)
    assert trace.steps[at["none"]].advantages is None


def test_tree_credit_of_flat_tree_is_unscaled_group() -> None:
    one, two = (trace_group([5], [[1, 2], [3], [4]], [1.0, 0.0, 0.5]) for _ in range(2))
    credit.assign_tree_credit(one, "wanted")
    credit.assign_to_answers(
        two, dict(zip((1, 2, 3), credit.group_relative([1.0, 0.0, 0.5], divide_by_std=False), strict=True))
    )
    assert marks(one) == marks(two)


def test_undecided_answer_gets_no_credit() -> None:
    trace = trace_group([5], [[1], [2], [3], [4]], [1.0, None, 0.0, None])
    trace.steps[4].scores.clear()  # never scored at all
    GRPO().credit([trace], "wanted", {})
    assert marks(trace)[1:] == [[1.0], None, [-1.0], None], "the baseline is of the judged alone"
    wrong = trace_group([5], [[1], [2], [3], [4]], [1.0, 0.0, 0.0, 0.0])  # what a silent 0 would have given
    GRPO().credit([wrong], "wanted", {})
    assert marks(wrong)[1] == [pytest.approx(1.732, abs=1e-3)]


def test_nan_score_is_undecided() -> None:
    trace = trace_group([5], [[1], [2], [3]], [1.0, 0.0, float("nan")])
    GRPO().credit([trace], "wanted", {})
    assert marks(trace)[1:] == [[1.0], [-1.0], None]


def test_single_scored_completion_gets_no_credit() -> None:
    for objective in (GRPO(), RLOO(), DAPO()):
        trace = trace_group([5], [[1], [2]], [1.0, None])
        trace.steps[1].notes["reference"] = np.zeros(1, FLOATS)
        objective.credit([trace], "wanted", {})
        assert all(s.advantages is None for s in trace.steps)


def test_truncated_answers_can_be_left_out_of_group() -> None:
    trace = trace_group([5], [[1], [2], [3], [4]], [1.0, 0.0, 0.0, 0.0])
    trace.steps[3].stop = trace.steps[4].stop = "length"
    assert [w.leaf for w in credit.scored_answers(trace, "wanted", include_truncated=False)] == [1, 2]
    DAPO(mask_truncated=True).credit([trace], "wanted", {})
    assert marks(trace)[1:] == [[1.0], [-1.0], None, None]
    DAPO().credit([trace], "wanted", {})
    assert marks(trace)[4] == [pytest.approx(-0.57735, abs=1e-5)]


def test_groups_are_by_trace_not_prompt_text() -> None:
    """The same question twice is two groups: each has its own baseline."""
    twins = [trace_group([5, 6], [[1], [2]], [1.0, 0.0], "same"), trace_group([5, 6], [[1], [2]], [1.0, 1.0], "same")]
    GRPO().credit(twins, "wanted", {})
    assert [marks(t)[1:] for t in twins] == [[[1.0], [-1.0]], [[0.0], [0.0]]]


def test_imitation_credits_answers_and_nothing_else() -> None:
    trace, (_, _, c, _) = with_tools()
    given_end = trace.add(Step(0, "from a file", ids([9, 2]), stop="eos"))
    credit.assign_imitation(trace, [c, given_end])
    assert marks(trace) == [None, [1.0, 1.0], None, [1.0], None, [1.0] * 3, None, [1.0, 1.0]]
    credit.assign_imitation(trace)
    assert list(itertools.compress(range(8), [m is None for m in marks(trace)])) == [0, 2, 4], "a tool's do not count"
