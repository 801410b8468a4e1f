"""Rewards out of parts: each part stays on the trace, and an undecided one is never a 0."""

import asyncio
import math
from dataclasses import dataclass

import pytest

from ponder.errors import UnknownName, UsageError
from ponder.runs.job_json import decode, encode
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from ponder.verify import (
    REWARDS,
    FinalNumber,
    GatedReward,
    RepetitionPenalty,
    ThinkFormat,
    WeightedSum,
    weighted_reward,
)

WELL = "<think>a</think><answer>42</answer>"
BARE = "<answer>42</answer>"
WRONG = "<think>a</think><answer>7</answer>"


def trace(*texts, answer="42"):
    return Trace(
        Problem("p", user_messages("?"), answer), [Step(None, "", ids([])), *(Step(0, t, ids([])) for t in texts)]
    )


@dataclass(frozen=True)
class Undecided:
    name: str = "broken"

    async def __call__(self, trace, steps):
        return [Score(None, "crashed")] * len(steps)


@dataclass(frozen=True)
class Counted:
    """Records for which steps it was asked."""

    asked: list

    @property
    def name(self):
        return "counted"

    async def __call__(self, trace, steps):
        self.asked.extend(steps)
        return [Score(0.5, "half")] * len(steps)


def test_gated_reward_needs_the_gate():
    t = trace(WELL, BARE, WRONG)
    scores = asyncio.run(GatedReward(ThinkFormat(), FinalNumber())(t, [3, 1, 2]))
    assert [s.value for s in scores] == [0.0, 1.0, 0.0]
    assert [t.score(i, "format") for i in (1, 2, 3)] == [1.0, 0.0, 1.0]
    assert [t.score(i, "accuracy") for i in (1, 2, 3)] == [1.0, None, 0.0]
    assert "accuracy" not in t.steps[2].scores  # never asked, which is not undecided
    assert scores[2].reason.startswith("format 0 is below 1 (")


def test_gated_reward_skips_steps_below_the_gate():
    asked = []
    t = trace(WELL, BARE)
    assert [s.value for s in asyncio.run(GatedReward(ThinkFormat(), Counted(asked), reward_below=-1.0)(t, [1, 2]))] == [
        0.5,
        -1.0,
    ]
    assert asked == [1]
    asyncio.run(GatedReward(ThinkFormat(), Counted(asked))(trace(BARE), [1]))
    assert asked == [1]


def test_an_undecided_gate_or_reward_is_undecided():
    t = trace(WELL)
    assert asyncio.run(GatedReward(Undecided(), FinalNumber())(t, [1]))[0] == Score(
        None, "broken is undecided: crashed"
    )
    assert asyncio.run(GatedReward(ThinkFormat(), Undecided())(t, [1]))[0] == Score(None, "crashed")


def test_gates_and_sums_nest():
    reward = GatedReward(ThinkFormat(), WeightedSum(((FinalNumber(), 1.0), (RepetitionPenalty(), 0.5))))
    t = trace(WELL, BARE)
    assert [s.value for s in asyncio.run(reward(t, [1, 2]))] == [1.0, 0.0]
    assert t.steps[1].scores.keys() == {"format", "accuracy", "repetition", "reward"} and reward.name == "gated_reward"
    assert decode(encode(reward)) == reward
    summed = WeightedSum(((GatedReward(ThinkFormat(), FinalNumber()), 2.0), (RepetitionPenalty(), 0.5)))
    assert [s.value for s in asyncio.run(summed(t, [1, 2]))] == [2.0, 0.0]
    assert t.steps[2].scores["gated_accuracy"].value == 0.0


def test_gated_reward_min_score_is_inclusive():
    half = GatedReward(Counted([]), FinalNumber(), min_score=0.5)
    assert asyncio.run(half(trace(WELL), [1]))[0].value == 1.0
    assert asyncio.run(GatedReward(Counted([]), FinalNumber(), min_score=0.6)(trace(WELL), [1]))[0].value == 0.0


def test_weighted_reward_by_name_and_weight():
    reward = weighted_reward({"accuracy": 1, "format": 0.5, "ponder.verify:RepetitionPenalty": 0.1}, FinalNumber())
    assert reward == WeightedSum(((FinalNumber(), 1.0), (ThinkFormat(), 0.5), (RepetitionPenalty(), 0.1)))
    for name in REWARDS:
        assert weighted_reward({name: 1.0}, FinalNumber()).parts[0][0].name == name
    with pytest.raises(UnknownName, match="Did you mean 'format'"):
        weighted_reward({"fromat": 1.0}, FinalNumber())
    for bad in ({}, {"format": math.nan}, {"math:pi": 1.0}):
        with pytest.raises(UsageError):
            weighted_reward(bad, FinalNumber())


def test_a_gameable_part_makes_the_whole_gameable():
    @dataclass(frozen=True)
    class Soft(Undecided):
        gameable: bool = True

    assert not WeightedSum(((FinalNumber(), 1.0),)).gameable and not GatedReward(ThinkFormat(), FinalNumber()).gameable
    assert WeightedSum(((GatedReward(ThinkFormat(), Soft()), 1.0),)).gameable


def test_invalid_rewards_are_refused():
    for make in (
        lambda: GatedReward(FinalNumber(), FinalNumber()),
        lambda: GatedReward(Undecided("accuracy"), FinalNumber()),
        lambda: GatedReward(ThinkFormat(), FinalNumber(), min_score=math.nan),
        lambda: GatedReward(ThinkFormat(), FinalNumber(), reward_below=math.inf),
    ):
        with pytest.raises(UsageError):
            make()
