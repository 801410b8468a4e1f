"""Truncated importance sampling, IcePop and decoupled PPO, each against its paper's formula, a token at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fakes import DigitTask, mixed_groups, perturb, tiny_decoder
from float64_losses import turned
from ponder.errors import UsageError
from ponder.nets.decoder import Decoder
from ponder.pipelines.rl import RL
from ponder.train.dpo import DPO
from ponder.train.learner import Learner
from ponder.train.policy_gradient import GRPO, RLOO
from ponder.train.ppo import PPO
from ponder.train.rollout_correction import (
    ROLLOUT_CORRECTIONS,
    DecoupledPPO,
    IcePop,
    RolloutCorrection,
    TruncatedIS,
    effective_sample_share,
)
from ponder.types import Trace
from reference_decoder import plain_logprobs, weights64

# The papers' weights of one token, as plain functions of k = pi_proximal / pi_behaviour.
FORMULAS: dict[str, Callable[[float], float]] = {
    "tis": lambda k: min(k, 2.0),
    "icepop": lambda k: k if 0.5 <= k <= 5.0 else 0.0,
    "decoupled": lambda k: k,
}
CLIP = 0.2


def stale_traces(net: Decoder) -> list[Trace]:
    """Credited samples of other weights, and the log-probabilities of the step's first weights beside them."""
    behaviour, proximal = perturb(copy.deepcopy(net), 0.08, seed=5), perturb(copy.deepcopy(net), 0.03, seed=6)
    traces = mixed_groups()
    for trace in traces:
        for i, step in enumerate(trace.steps):
            if step.sampled:
                step.logprobs, step.notes["old"] = (
                    plain_logprobs(other, weights64(other), trace.token_ids(i).tolist(), len(step.token_ids), 1.0)
                    .detach()
                    .float()
                    .numpy()
                    for other in (behaviour, proximal)
                )
    GRPO(kl=None).credit(traces, "wanted", {})
    return traces


def slow_gradient(name: str, net: Decoder, traces: list[Trace]) -> tuple[dict[str, torch.Tensor], list[float]]:
    """GRPO's clipped surrogate in float64, each token times the paper's weight; and the ratios of trained tokens."""
    w = weights64(net)
    total, ratios, completions = torch.zeros((), dtype=torch.float64), list[float](), 0
    for trace in traces:
        for leaf in trace.answers():
            own = [i for i in trace.path(leaf) if trace.steps[i].advantages is not None]
            if not own:
                continue
            completions += 1
            live = any(np.any(trace.steps[i].advantages) for i in own)  # else it is not computed
            length, loss = sum(len(trace.steps[i].token_ids) for i in own), torch.zeros((), dtype=torch.float64)
            for i in own:
                step = trace.steps[i]
                assert step.logprobs is not None and step.advantages is not None
                new = plain_logprobs(net, w, trace.token_ids(i).tolist(), len(step.token_ids), 1.0)
                for t in range(len(step.token_ids)):
                    k = math.exp(float(step.notes["old"][t]) - float(step.logprobs[t]))
                    ratios += [k] if live else []
                    rho, a = (new[t] - float(step.notes["old"][t])).exp(), float(step.advantages[t])
                    surrogate = torch.minimum(rho * a, rho.clamp(1 - CLIP, 1 + CLIP) * a)
                    loss = loss - FORMULAS[name](k) * surrogate
            total = total + loss / length
    (total / completions).backward()
    return {n: p.grad for n, p in w.items() if p.grad is not None}, ratios


@pytest.mark.parametrize("name", FORMULAS)
def test_gradient_is_that_of_the_formula(name: str) -> None:
    net = tiny_decoder(scale=0.1)
    traces = stale_traces(net)
    expected, ratios = slow_gradient(name, net, traces)
    assert sum(k > 2 for k in ratios) > 3 and sum(k < 0.5 for k in ratios) > 3, "the samples are stale"
    correction: RolloutCorrection = ROLLOUT_CORRECTIONS[name]()
    grads = Learner(net, GRPO(kl=None), max_tokens_per_microbatch=20, rollout_correction=correction).gradient(traces)
    assert turned(grads, expected) < 1e-5
    assert turned(Learner(net, GRPO(kl=None)).gradient(traces), expected) > 0.05, "without it the gradient is another"


def test_corrections_of_single_ratios() -> None:
    k = torch.tensor([0.0, 0.4, 0.5, 1.0, 2.0, 4.9, 5.0, 6.0])
    assert TruncatedIS(2.0).weigh(k).tolist() == pytest.approx([0, 0.4, 0.5, 1, 2, 2, 2, 2])
    assert IcePop(0.5, 5.0).weigh(k).tolist() == pytest.approx([0, 0, 0.5, 1, 2, 4.9, 5, 0])
    assert DecoupledPPO().weigh(k).tolist() == k.tolist()


@pytest.mark.parametrize("name", FORMULAS)
def test_correction_changes_nothing_where_sampler_and_learner_agree(name: str) -> None:
    net = tiny_decoder(scale=0.1)
    traces = stale_traces(net)
    for trace in traces:
        for step in trace.steps:
            step.logprobs = step.notes.get("old")
    plain = Learner(net, GRPO(kl=None)).gradient(traces)
    corrected = Learner(net, GRPO(kl=None), rollout_correction=ROLLOUT_CORRECTIONS[name]()).gradient(traces)
    assert turned(corrected, plain) < 1e-6


def test_kl_and_entropy_terms_are_not_weighed() -> None:
    """Where no advantage is left, the rest of the gradient is the same with and without a correction."""
    net = tiny_decoder(scale=0.1)
    rule, reference = GRPO(entropy_coef=0.1), tiny_decoder(seed=3, scale=0.1)
    traces = stale_traces(net)
    for trace in traces:
        for step in trace.steps:
            step.advantages = None if step.advantages is None else np.zeros_like(step.advantages)
    plain = Learner(net, rule, reference=reference).gradient(traces)
    corrected = Learner(net, rule, reference=reference, rollout_correction=IcePop()).gradient(traces)
    assert turned(corrected, plain) < 1e-6


def test_token_without_a_known_probability_has_weight_1() -> None:
    net = tiny_decoder(scale=0.1)
    traces = stale_traces(net)
    for trace in traces:
        for step in trace.steps:
            if step.logprobs is not None:
                step.logprobs = np.full_like(step.logprobs, np.nan)
    plain = Learner(net, GRPO(kl=None)).gradient(traces)
    assert turned(Learner(net, GRPO(kl=None), rollout_correction=TruncatedIS()).gradient(traces), plain) < 1e-6


def test_metrics_say_how_stale_the_samples_are() -> None:
    net = tiny_decoder(scale=0.1)
    traces = stale_traces(net)
    _, ratios = slow_gradient("tis", net, traces)
    metrics = Learner(net, GRPO(kl=None), rollout_correction=TruncatedIS()).step(traces)
    k = np.array(ratios)
    assert metrics["rollout_correction/ratio"] == pytest.approx(k.mean(), rel=1e-4)
    assert metrics["rollout_correction/weight"] == pytest.approx(k.clip(max=2).mean(), rel=1e-4)
    assert metrics["rollout_correction/changed"] == pytest.approx((k > 2).mean(), rel=1e-4)
    assert metrics["rollout_correction/ess"] == pytest.approx(k.sum() ** 2 / (k**2).sum() / len(k), rel=1e-4)


def test_effective_sample_share_of_equal_and_of_one_weight() -> None:
    assert effective_sample_share(1.0, 1.0) == 1.0
    assert effective_sample_share(1.0, 4.0) == 0.25  # one token of four has all the weight
    assert effective_sample_share(0.0, 0.0) == 0.0


@pytest.mark.parametrize("rule", [GRPO(), RLOO(), PPO()])
def test_job_takes_a_correction_by_name(rule: object) -> None:
    job = RL(DigitTask(), algorithm=rule, rollout_correction="icepop")  # type: ignore[arg-type]
    assert job.rollout_correction == IcePop()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        TruncatedIS(0.5)
    with pytest.raises(UsageError, match="1 must lie between"):
        IcePop(1.5, 2.0)
    with pytest.raises(UsageError, match="no policy gradient"):
        replace(RL(DigitTask()), algorithm=DPO(), rollout_correction=TruncatedIS())
