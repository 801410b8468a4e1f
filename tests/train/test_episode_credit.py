"""Credit and packing of episodes: what the policy wrote is trained, what the environment said is read, once each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fakes import tiny_decoder
from ponder.train import credit, losses, pack
from ponder.train.gigpo import GiGPO, anchor_groups
from ponder.train.learner import Learner
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from ponder.types import TURN_REWARD, Problem, Score, Step, Trace, ids, user_messages
from reference_decoder import plain_logprobs, weights64

CPU = torch.device("cpu")
PROBLEM = Problem("p", user_messages("?"))


def sampled(parent: int, text: str, tokens: list[int], reward: float | None = None, **more: Any) -> Step:
    scores = {} if reward is None else {TURN_REWARD: Score(reward)}
    numbers = np.full(len(tokens), -0.7, np.float32)
    return Step(parent, text, ids(tokens), numbers, "stop", scores=scores, **more)


def episodes(rewritten: bool = False) -> Trace:
    """Three episodes of two turns: two meet the state "x" after their first turn, one the state "y"."""
    trace = Trace(PROBLEM, [Step(None, "?", ids([5, 6, 7]))])
    for number, (state, rewards) in enumerate([("x", (0.0, 1.0)), ("x", (0.5, 0.0)), ("y", (0.0, 0.0))]):
        first = trace.add(sampled(0, "a", [10 + number, 11], rewards[0]))
        if rewritten:
            turn = trace.add(Step(None, state, ids([5, 6, 7, 20 + number, 21]), cites=(first,), turn=True))
        else:
            turn = trace.add(Step(first, state, ids([20 + number, 21, 22]), turn=True))
        end = sampled(turn, "b", [30 + number, 31, 32], rewards[1], last=True)
        end.scores["reward"] = Score(sum(rewards))
        trace.add(end)
    return trace


def advantages(trace: Trace) -> list[list[float]]:
    return [[round(float(x), 6) for x in s.advantages] for s in trace.steps if s.advantages is not None]


@pytest.mark.parametrize("rewritten", [False, True])
def test_outcome_is_credited_to_every_turn(rewritten: bool):
    trace = episodes(rewritten)
    GRPO(kl=None).credit([trace], "reward", {})
    expected = credit.group_relative([1.0, 0.5, 0.0])
    assert advantages(trace) == [[round(float(a), 6)] * n for a in expected for n in (2, 3)]
    assert all(s.advantages is None for s in trace.steps if not s.sampled)


@pytest.mark.parametrize("rewritten", [False, True])
def test_gigpo_by_hand(rewritten: bool):
    trace = episodes(rewritten)
    GiGPO(kl=None, gamma=0.5, step_weight=2.0).credit([trace], "reward", {})
    whole = [1.224745, 0.0, -1.224745]  # rewards 1, 1/2, 0: mean 1/2, std 0.408248
    # All first turns begin at the prompt: discounted returns 0.5, 0.5, 0: mean 1/3, std 0.235702.
    first = [0.707107, 0.707107, -1.414214]
    second = [1.0, -1.0, 0.0]  # in state x returns 1 and 0; alone in state y
    got = [rows[0] for rows in advantages(trace)]
    assert got[0::2] == pytest.approx([w + 2 * f for w, f in zip(whole, first, strict=True)], abs=1e-5)
    assert got[1::2] == pytest.approx([w + 2 * s for w, s in zip(whole, second, strict=True)], abs=1e-5)


def test_gigpo_without_rewards_of_turns_discounts_the_outcome():
    trace = episodes()
    for step in trace.steps:
        step.scores.pop(TURN_REWARD, None)
    groups = anchor_groups(credit.scored_answers(trace, "reward"), 0.5)
    assert [sorted(value for _, value in group) for group in groups] == [[0.0, 0.25, 0.5], [0.5, 1.0], [0.0]]


def test_undecided_episode_shifts_no_baseline():
    trace = episodes()
    trace.steps[trace.answers()[2]].scores["reward"] = Score(None, "crashed")
    GiGPO(kl=None).credit([trace], "reward", {})
    assert [trace.steps[i].advantages is None for i in trace.conversation(trace.answers()[2])[1:]] == [True] * 3


def test_ppo_places_a_turn_s_reward_at_its_end():
    trace = episodes()
    item = credit.scored_answers(trace, "reward")[1]
    assert item.rewards_t(0.5).tolist() == [0.0, 0.5, 0.0, 0.0, 0.0]
    assert item.rewards_t(0.75).tolist() == [0.0, 0.5, 0.0, 0.0, 0.25]  # a reward beyond the turns' stands at the end
    for step in trace.steps:
        step.notes["values"] = np.zeros(len(step.token_ids), np.float32)
    PPO(kl=None, lam=1.0, whiten_advantages=False).credit([trace], "reward", {})
    assert advantages(trace)[2:4] == [[0.5, 0.5], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("rewritten", [False, True])
def test_each_token_is_computed_once(rewritten: bool):
    trace = episodes(rewritten)
    GRPO(kl=None).credit([trace], "reward", {})
    work = pack.plan([trace], losses.sequence_mean, True)
    batch = pack.pack([work[0]], CPU)
    total = sum(len(s.token_ids) for s in trace.steps)
    assert sum(batch.lengths[: len(trace.steps)]) == total  # what follows is padding
    assert len(work[0].chains) == 3  # an episode is one completion in the denominators
    assert sorted(batch.target_N.tolist()) == sorted(t for s in trace.steps if s.sampled for t in s.token_ids.tolist())


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("objective", [GRPO(kl=None), GiGPO(kl=None)], ids=lambda o: type(o).__name__)
def test_gradient_equals_that_of_separate_sequences(objective: Any, rewritten: bool):
    """The plain path, in float64: each turn alone after all that stood before it."""
    net, trace = tiny_decoder(), episodes(rewritten)
    weights = weights64(net)
    loss = torch.zeros((), dtype=torch.float64)
    turns = [(i, step) for i, step in enumerate(trace.steps) if step.sampled]
    logprobs = {i: plain_logprobs(net, weights, trace.token_ids(i).tolist(), len(step.token_ids)) for i, step in turns}
    for i, step in turns:
        step.logprobs = logprobs[i].detach().float().numpy()
    objective.credit([trace], "reward", {})
    for i, step in turns:  # GRPO: the mean over the 5 tokens of an episode, then over the 3 episodes
        loss = loss - (torch.tensor(step.advantages, dtype=torch.float64) * logprobs[i]).sum() / 5 / 3
    loss.backward()
    gradient = Learner(net, objective).gradient([trace])
    for name, theirs in weights.items():
        assert theirs.grad is not None
        # some 1e-6 of the gradient's norm, which is about 10: the learner computes in float32
        assert torch.allclose(gradient[name].double(), theirs.grad, atol=3e-6), name
