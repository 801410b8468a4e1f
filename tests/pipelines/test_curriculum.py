"""Curricula: pure choices from a history, against counting by hand and on a learner that can be simulated."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import TaskError, UsageError
from ponder.pipelines.problems.curriculum import (
    CURRICULA,
    Curriculum,
    EasyToHard,
    Frontier,
    PassRateHistory,
    Uniform,
    difficulty,
)
from ponder.pipelines.problems.shuffled_order import shuffled_indices, shuffled_problems
from ponder.runs import job_json
from ponder.types import Problem, user_messages

HALF, ALL, NONE = [1.0, 0.0] * 4, [1.0] * 8, [0.0] * 8
GROUPS = st.lists(st.tuples(st.integers(0, 40), st.lists(st.one_of(st.none(), st.floats(-2, 3)), max_size=8)))
KINDS = st.sampled_from([Frontier(), Frontier(0.0), Frontier(1.0, 0.0), EasyToHard(60), EasyToHard(500, 0.01)])


def problems(size: int, **tags: Any) -> list[Problem]:
    """Each tag is one value for all, or one per problem."""
    each = {name: v if isinstance(v, list) else [v] * size for name, v in tags.items()}
    return [Problem(f"p{i}", user_messages("?"), None, {name: v[i] for name, v in each.items()}) for i in range(size)]


def history(groups: Sequence[tuple[int, Sequence[float | None]]], **settings: Any) -> PassRateHistory:
    out = PassRateHistory(**settings)
    for index, rewards in groups:
        out.add(index, rewards)
    return out


def through_json(of: PassRateHistory) -> PassRateHistory:
    return PassRateHistory.from_json(json.loads(json.dumps(of.to_json())))


class Endless(Sequence[Problem]):
    """A million problems, each made when it is asked for, and counted."""

    made = 0

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        assert isinstance(index, int)
        self.made += 1
        return Problem(f"p{index}", user_messages("?"), None, {"level": index % 5})


# history


@given(GROUPS, st.floats(1, 100))
def test_history_matches_sum_over_tries(groups: list[tuple[int, list[float | None]]], half: float) -> None:
    result = history(groups, half_life=half)
    for index in {i for i, _ in groups}:
        own = [[min(1.0, max(0.0, r)) for r in rewards if r is not None] for i, rewards in groups if i == index]
        after = [sum(map(len, own[j + 1 :])) for j in range(len(own))]
        tries = sum(len(g) * 2 ** (-later / half) for g, later in zip(own, after, strict=True))
        passes = sum(sum(g) * 2 ** (-later / half) for g, later in zip(own, after, strict=True))
        assert result.counts(index) == pytest.approx((tries, passes))
        rate = result.rate(index)
        assert (rate is None) == (tries == 0) and (rate is None or rate == pytest.approx(passes / tries))


@given(GROUPS)
def test_history_json_round_trip(groups: list[tuple[int, list[float | None]]]) -> None:
    first = history(groups, half_life=7.3, max_problems=9)
    second = through_json(first)
    for index, rewards in [*groups, (3, HALF), (50, ALL)]:
        first.add(index, rewards)
        second.add(index, rewards)
    assert first.to_json() == second.to_json() and list(first) == list(second)


def test_undecided_rewards_do_not_count() -> None:
    result = history([(1, [None, math.nan]), (2, [None, 1.0, 0.0, math.nan])])
    assert result.rate(1) is None and list(result) == [2]
    assert result.counts(2) == (2.0, 1.0)


def test_history_forgets_the_least_recently_tried() -> None:
    result = history([(0, HALF), (1, HALF), (2, HALF), (0, ALL), (3, NONE)], max_problems=3)
    assert list(result) == [3, 0, 2] and len(result) == 3
    assert result.rate(1) is None and result.rate(0) == pytest.approx((4 * 0.5**0.5 + 8) / (8 * 0.5**0.5 + 8))


def test_curricula_refuse_impossible_settings() -> None:
    for bad in ({"half_life": 0.0}, {"half_life": math.inf}, {"half_life": math.nan}, {"max_problems": 0}):
        with pytest.raises(UsageError, match="half_life"):
            PassRateHistory(**bad)
    for make in (lambda: Frontier(1.1), lambda: Frontier(-0.1), lambda: Frontier(0.2, -1), lambda: Frontier(math.nan)):
        with pytest.raises(UsageError, match="explore_share"):
            make()
    for other in (lambda: EasyToHard(0), lambda: EasyToHard(9, 0.0), lambda: EasyToHard(9, 1.5)):
        with pytest.raises(UsageError, match="ramp_problems"):
            other()


# every curriculum


@given(KINDS, st.integers(1, 40), st.integers(0, 9), st.integers(0, 700), st.integers(0, 90), GROUPS)
def test_choices(
    kind: Curriculum, size: int, seed: int, cursor: int, count: int, groups: list[tuple[int, list[float | None]]]
) -> None:
    asked, tried = problems(size), history([(i % size, r) for i, r in groups])
    before = tried.to_json()
    chosen = kind.choose(asked, seed, cursor, count, tried)
    assert tried.to_json() == before
    assert len(chosen) == count and set(chosen) <= set(range(size)) and all(type(i) is int for i in chosen)
    if not (
        isinstance(kind, EasyToHard) and cursor >= kind.ramp_problems
    ):  # the plain stream may cross from epoch to epoch
        times = [chosen.count(i) for i in range(size)]
        assert max(times) - min(times) <= 1, "none twice before all once"
    assert (
        chosen
        == kind.choose(asked, seed, cursor, count, through_json(tried))
        == kind.choose(asked, seed, cursor, count, tried)
    )


@given(st.integers(1, 40), st.integers(0, 9), st.integers(0, 700), st.integers(0, 90), GROUPS)
def test_uniform_is_the_stream(
    size: int, seed: int, cursor: int, count: int, groups: list[tuple[int, list[float | None]]]
) -> None:
    asked = problems(size)
    chosen = Uniform().choose(asked, seed, cursor, count, history(groups))
    assert [asked[i] for i in chosen] == shuffled_problems(asked, seed, cursor, count)
    epochs = [np.random.default_rng([seed, e]).permutation(size) for e in range((cursor + count) // size + 1)]
    assert chosen == np.concatenate(epochs)[cursor : cursor + count].tolist()


@pytest.mark.parametrize("kind", [Uniform(), Frontier(), EasyToHard()])
def test_choice_does_not_read_a_million_problems(kind: Curriculum) -> None:
    endless, tried = Endless(), history([(i, HALF) for i in range(5_000)])
    chosen = kind.choose(endless, 0, 64, 32, tried)
    assert len(set(chosen)) == 32 and max(chosen) > 5_000 and endless.made < 2_000


@pytest.mark.parametrize("name", CURRICULA)
def test_lookup_by_name(name: str) -> None:
    kind = CURRICULA[name]()
    assert job_json.decode(json.loads(json.dumps(job_json.encode(kind)))) == kind
    with pytest.raises(TaskError, match="no problems"):
        kind.choose([], 0, 0, 4, PassRateHistory())
    seeds = [tuple(kind.choose(problems(30), seed, 0, 10, PassRateHistory())) for seed in range(4)]
    calls = [tuple(kind.choose(problems(30), 0, cursor, 10, PassRateHistory())) for cursor in (0, 10, 20)]
    assert len(set(seeds)) == 4 and len(set(calls)) == 3


# frontier


def test_frontier_draws_in_proportion_to_its_weights() -> None:
    tried = history([(0, HALF), (1, [1.0] + [0.0] * 7), (2, ALL), (3, NONE)])
    draws = 4000
    times = Counter(i for c in range(draws) for i in Frontier(0.0, focus=1.0).choose(problems(4), 0, c, 1, tried))
    a, b = np.array([4.5, 1.5, 8.5, 0.5]), np.array([4.5, 7.5, 0.5, 8.5])  # Beta(1/2, 1/2) and what was seen
    weights = a * b / ((a + b) * (a + b + 1))
    for i, share in enumerate(weights / weights.sum()):
        assert abs(times[i] / draws - share) < 4 * math.sqrt(share * (1 - share) / draws)


def test_frontier_prefers_half_then_untried_then_dead() -> None:
    tried = history([(i, (HALF, ALL, NONE)[i % 3]) for i in range(60)])
    times = Counter(i for seed in range(40) for i in Frontier(0.0).choose(problems(80), seed, 0, 20, tried))
    half, solved, failed = (sum(times[i] for i in range(k, 60, 3)) for k in range(3))
    untried = sum(times[i] for i in range(60, 80))
    assert half > 3 * untried > 15 * max(solved, failed)


def test_frontier_goes_through_all_problems_with_its_share() -> None:
    tried, asked = history([(0, HALF)]), problems(50)
    plain: list[int] = []
    for cursor in range(0, 250, 10):  # a fifth of 250 is one epoch
        chosen = Frontier(explore_share=0.2).choose(asked, 3, cursor, 10, tried)
        assert chosen[:2] == shuffled_indices(50, 3, cursor // 5, 2)
        plain += chosen[:2]
    assert sorted(plain) == list(range(50))


# easy to hard


def test_easy_to_hard_by_level() -> None:
    asked = problems(100, level=[f"Level {i % 10}" for i in range(100)])
    plan = EasyToHard(ramp_problems=1000, start_share=0.2)

    def levels(cursor: int) -> list[int]:
        return [i % 10 for seed in range(20) for i in plan.choose(asked, seed, cursor, 10, PassRateHistory())]

    assert set(levels(0)) == {0, 1} and max(levels(500)) == 5
    assert np.mean(levels(0)) < np.mean(levels(300)) < np.mean(levels(600)) < np.mean(levels(1000))
    assert plan.choose(asked, 7, 1000, 10, PassRateHistory()) == shuffled_indices(100, 7, 1000, 10)


def test_easy_to_hard_trusts_what_was_measured() -> None:
    asked = problems(20, difficulty=[i // 10 for i in range(20)])  # the tags say: the upper half is hard
    tried = history([(i, ALL if i >= 10 else NONE) for i in range(20)])
    assert set(EasyToHard(start_share=0.5).choose(asked, 0, 0, 10, tried)) == set(range(10, 20))
    plain = history([(i, (ALL, HALF, NONE)[i % 3]) for i in range(15)])
    for seed in range(5):  # without tags: what is solved, then the half solved and untried, then what fails
        chosen = EasyToHard(start_share=0.01).choose(problems(18), seed, 0, 13, plain)
        assert set(range(0, 15, 3)) < set(chosen) and not set(range(2, 15, 3)) & set(chosen)


def test_easy_to_hard_puts_what_has_no_level_in_the_middle() -> None:
    asked = problems(40, level=[(1, 2, 3, None)[i % 4] for i in range(40)])
    for seed in range(5):
        kinds = [
            [i % 4 for i in EasyToHard(start_share=0.01).choose(asked, seed, 0, n, PassRateHistory())] for n in (10, 30)
        ]
        assert set(kinds[0]) == {0} and Counter(kinds[1]) == {0: 10, 1: 10, 3: 10}
    alike = EasyToHard().choose(problems(40, level=2), 0, 0, 10, PassRateHistory())
    assert len(set(alike)) == 10


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"level": 3}, 3.0),
        ({"level": "Level 5"}, 5.0),
        ({"difficulty": 0.25}, 0.25),
        ({"difficulty": " Hard "}, 3.0),
        ({"level": "?", "difficulty": "easy"}, 1.0),
        ({"level": "Level ?"}, None),
        ({}, None),
    ],
)
def test_level(tags: dict[str, Any], expected: float | None) -> None:
    assert difficulty(Problem("p", (), None, tags)) == expected


# a learner


def learn(kind: Curriculum, seed: int, restart: bool = False) -> tuple[float, list[list[int]]]:
    """Share of groups with a gradient, and what was asked. Skill grows with each such group."""
    rng = np.random.default_rng([seed, 9])
    hardness, skill, tried = rng.normal(3.0, 4.0, 400), 0.0, PassRateHistory()
    asked, live, order = problems(400), 0, []
    for step in range(50):
        chosen = kind.choose(asked, seed, 16 * step, 16, tried)
        order.append(chosen)
        for index in chosen:
            rewards = (rng.random(8) < 1 / (1 + math.exp(hardness[index] - skill))).astype(float)
            tried.add(index, rewards.tolist())
            if 0 < rewards.sum() < 8:
                live, skill = live + 1, skill + 0.006
        if restart and step == 25:
            tried = through_json(tried)
    return live / (16 * 50), order


def test_frontier_finds_groups_with_gradients() -> None:
    for seed in range(5):
        uniform, frontier = learn(Uniform(), seed)[0], learn(Frontier(), seed)[0]
        assert frontier > uniform + 0.15, (uniform, frontier)


@pytest.mark.parametrize("kind", [Frontier(), EasyToHard(400)])
def test_resumed_run_chooses_the_same_problems(kind: Curriculum) -> None:
    assert learn(kind, 1) == learn(kind, 1, restart=True)
