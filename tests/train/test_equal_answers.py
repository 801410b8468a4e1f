"""Equal answers with equal labels are computed once: the loss and its gradient are those of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fakes import perturb, tiny_decoder, trace_group
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.train.equal_answers import answer_count, merge_equal_answers
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.reward_learner import make_reward_learner
from ponder.train.reward_objectives import (
    REWARD_OBJECTIVES,
    ImplicitReward,
    OutcomeReward,
    RewardObjective,
    TokenOutcomeReward,
)
from ponder.types import Score, Step, Trace, ids


def groups() -> list[Trace]:
    """Two prompts; of the first one's six answers three are equal, and a fourth has their tokens but another label."""
    many = [[7, 8, 2], [9, 2], [7, 8, 2], [7, 8, 2], [9, 2], [7, 8, 2]]
    return [
        trace_group([5, 9], many, [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        trace_group([6, 9], [[7, 2], [10, 11, 2]], [0.0, 1.0]),
    ]


def merged(rule: RewardObjective, traces: list[Trace]) -> list[Trace]:
    return [merge_equal_answers(trace, dict(rule.targets(trace, "wanted"))) for trace in traces]


def learner_of(rule: RewardObjective) -> Learner:
    start = tiny_decoder(scale=0.1)
    net: Any = DecoderWithReference if isinstance(rule, ImplicitReward) else DecoderWithHead
    made = perturb(net.from_decoder(start, rule.head), 0.05, seed=4)
    return make_reward_learner(made, rule, AdamW(lr=1e-9))


def test_answers_with_equal_tokens_and_labels_become_one() -> None:
    first, second = merged(OutcomeReward(), given := groups())
    assert [answer_count(step) for step in first.steps[1:]] == [3, 2, 1]
    assert [list(step.token_ids) for step in first.steps[1:]] == [[7, 8, 2], [9, 2], [7, 8, 2]]
    assert [first.score(i, "wanted") for i in first.answers()] == [1.0, 0.0, 0.0]
    assert second is given[1], "nothing to merge"
    assert len(given[0].steps) == 7 and all(answer_count(step) == 1 for step in given[0].steps), "left as it was"


def test_answers_sampled_with_other_logprobs_stay_apart() -> None:
    trace = groups()[0]
    for i, step in enumerate(trace.steps[1:], 1):
        other = 0.4 if i == 3 else 0.001 * i  # the third answer is another policy's
        trace.steps[i] = replace(step, logprobs=np.full(len(step.token_ids), -1.0 - other, np.float32))
    targets = dict(OutcomeReward().targets(trace, "wanted"))
    found = merge_equal_answers(trace, targets, same_logprobs=True)
    assert [answer_count(step) for step in found.steps[1:]] == [2, 2, 1, 1]
    assert [round(float(step.logprobs[0]), 3) for step in found.steps[1:] if step.logprobs is not None] == [
        -1.001, -1.002, -1.4, -1.006,
    ]  # fmt: skip
    assert [answer_count(step) for step in merge_equal_answers(trace, targets).steps[1:]] == [3, 2, 1]
    unknown = groups()[0]
    assert len(merge_equal_answers(unknown, targets, same_logprobs=True).steps) == 4, "none has any"


@pytest.mark.filterwarnings("error")
def test_answers_with_equal_infinite_logprobs_become_one() -> None:
    """A forced token's can be -inf. One that is -inf for one answer alone keeps them apart."""
    trace = groups()[0]
    for i, step in enumerate(trace.steps[1:], 1):
        first = -1.0 if i == 3 else -np.inf
        logprobs = np.asarray([first, *[-1.0] * (len(step.token_ids) - 1)], np.float32)
        trace.steps[i] = replace(step, logprobs=logprobs)
    targets = dict(OutcomeReward().targets(trace, "wanted"))
    found = merge_equal_answers(trace, targets, same_logprobs=True)
    assert [answer_count(step) for step in found.steps[1:]] == [2, 2, 1, 1]


def test_trace_with_deeper_steps_stays() -> None:
    trace = groups()[0]
    last = Step(1, "", ids([3, 2]), stop="eos")
    last.scores["wanted"] = Score(1.0)
    trace.add(last)
    assert merge_equal_answers(trace, dict(OutcomeReward().targets(trace, "wanted"))) is trace


@pytest.mark.parametrize(
    "rule",
    [OutcomeReward(), TokenOutcomeReward(lm_weight=0.7), ImplicitReward(beta=0.2)],
    ids=lambda r: type(r).__name__,
)
def test_gradient_of_merged_answers_is_that_of_all(rule: RewardObjective) -> None:
    found = []
    for traces in (groups(), merged(rule, groups())):
        learner = learner_of(rule)
        assert rule.credit(traces, "wanted", {}) == {"labels": 8.0}
        found.append((learner.gradient(traces), learner.step(traces)["loss"]))
    (all_gradients, all_loss), (gradients, loss) = found
    assert loss == pytest.approx(all_loss, rel=1e-5)
    assert any(bool(g.abs().max() > 1e-4) for g in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, all_gradients[name], rtol=1e-4, atol=1e-6)


def test_only_losses_that_are_sums_over_answers_merge() -> None:
    merging = {name for name, rule in REWARD_OBJECTIVES.items() if rule.merges_equal_answers}
    assert merging == {"orm", "token-orm", "implicit"}
