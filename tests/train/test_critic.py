"""The critic: values of the tokens that were written, a loss against their returns, and nothing of the policy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import float64_losses
from fakes import mixed_groups, perturb, tiny_decoder
from float64_losses import gap
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.train.critic import critic_metrics, make_critic_learner, write_values
from ponder.train.learner import Learner
from ponder.train.objective import Critic
from ponder.train.optimizer import AdamW
from ponder.train.ppo import PPO
from ponder.types import Trace
from reference_decoder import plain_hidden, weights64

RULE = PPO(kl=None)


def seen(net: Decoder, traces: list[Trace], rule: PPO = RULE) -> Learner:
    """A critic that has already learned something, and traces with its values and their credit."""
    learner = make_critic_learner(net, rule.critic)
    perturb(learner.net, 0.1)
    write_values(learner, traces)
    rule.credit(traces, "wanted", {})
    return learner


def test_critic_starts_at_zero_and_leaves_the_policy_unchanged() -> None:
    net = tiny_decoder()
    before = copy.deepcopy(net.state_dict())
    learner, traces = make_critic_learner(net, Critic(optimizer=AdamW(lr=0.1))), mixed_groups()
    write_values(learner, traces)
    assert all(not s.notes["values"].any() for t in traces for s in t.steps if s.sampled)
    RULE.credit(traces, "wanted", {})
    learner.step(traces)
    assert all(torch.equal(before[n], p) for n, p in net.state_dict().items())
    assert learner.net.score.weight.any(), "and the critic has learned"


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_value_is_read_before_its_token(kind: str) -> None:
    """V(t) is of what stands before t: it cannot know which token was drawn."""
    traces = mixed_groups()
    learner = seen(tiny_decoder(kind), traces)
    w = {n: p.detach() for n, p in weights64(learner.net).items()}
    for trace in traces:
        for i, step in enumerate(trace.steps):
            if not step.sampled:
                assert "values" not in step.notes, "nobody wrote a prompt or a tool's output"
                continue
            hidden = plain_hidden(w, learner.net.config, trace.token_ids(i).tolist())
            expected = (hidden @ w["score.weight"][0])[-len(step.token_ids) - 1 : -1]
            assert np.allclose(step.notes["values"], expected, atol=1e-5)


@pytest.mark.parametrize("clip", [0.2, 0.02, None])
def test_critic_loss_and_gradient(clip: float | None) -> None:
    traces = mixed_groups()
    learner = seen(tiny_decoder("untied"), traces)
    moved = make_critic_learner(perturb(learner.net, 0.02, seed=3), Critic(value_clip=clip, optimizer=AdamW(lr=1e-9)))
    wide = 1e9 if clip is None else clip
    loss, expected = float64_losses.step(lambda of: float64_losses.critic(of, wide), moved.net, traces)
    result = moved.gradient(traces)
    assert gap(result, expected) < 1e-5
    assert "lm_head.weight" not in result, "a critic has no words"
    output = critic_metrics(moved.step(traces))
    assert output["critic/loss"] == pytest.approx(loss, rel=1e-5)
    assert output.keys() == {"critic/loss", "critic/grad_norm", "critic/lr"}


def test_temperature_is_not_in_values() -> None:
    net = DecoderWithHead.from_decoder(tiny_decoder())
    perturb(net)
    read = []
    for heat in (1.0, 0.5):
        traces = mixed_groups()
        learner = make_critic_learner(net, Critic(), temperature=heat)
        write_values(learner, traces)
        read.append(np.concatenate([s.notes["values"] for t in traces for s in t.steps if s.sampled]))
    assert np.array_equal(*read) and read[0].any()


def test_undecided_answers_give_the_critic_no_gradient() -> None:
    traces = mixed_groups()
    learner = seen(tiny_decoder(), traces)
    undecided = traces[2].steps[2]
    assert "values" in undecided.notes and "returns" not in undecided.notes and undecided.advantages is None
    expected = learner.gradient(traces)
    undecided.notes["values"] = undecided.notes["values"] + 100
    assert gap(learner.gradient(traces), expected) == 0


def test_critic_learns_expected_return() -> None:
    traces = mixed_groups()
    learner = make_critic_learner(tiny_decoder(), Critic(optimizer=AdamW(lr=3e-3), value_clip=None), epochs_per_batch=2)
    explained = []
    for _ in range(25):
        write_values(learner, traces)
        explained.append(PPO(kl=None, lam=1.0).credit(traces, "wanted", {})["value/explained_variance"])
        learner.step(traces)
    assert explained[0] == 0 and explained[-1] > 0.6, "the first token's value cannot know"


def test_critic_honours_frozen_layers_and_checkpointing() -> None:
    traces = mixed_groups()
    seen(tiny_decoder(), traces)
    net = perturb(DecoderWithHead.from_decoder(tiny_decoder()), 0.1)
    plain, less = (make_critic_learner(net, Critic(), gradient_checkpointing=r).gradient(traces) for r in (False, True))
    assert gap(less, plain) < 1e-6
    frozen = make_critic_learner(net, Critic(), frozen_layers=1).gradient(traces)
    assert all(n.startswith(("layers.1.", "norm.", "score.")) for n in frozen)
    assert gap(frozen, {n: plain[n] for n in frozen}) < 1e-5


def test_policy_and_critic_share_no_weights() -> None:
    """One is made of the other's network, and neither moves the other's weights."""
    net, traces = tiny_decoder(), mixed_groups()
    critic, learner = make_critic_learner(net, Critic(optimizer=AdamW(lr=0.1))), Learner(net, RULE, AdamW(lr=0.1))
    write_values(critic, traces)
    RULE.credit(traces, "wanted", {})
    before = copy.deepcopy(critic.net.state_dict())
    learner.step(traces)
    assert all(torch.equal(before[n], p) for n, p in critic.net.state_dict().items())
    policy = copy.deepcopy(net.state_dict())
    critic.step(traces)
    assert all(torch.equal(policy[n], p) for n, p in net.state_dict().items())
