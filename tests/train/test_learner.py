"""The learner: the right step from the right gradient, what it records, and what it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import float64_losses
from fakes import mixed_groups, perturb, tiny_decoder, trace_group
from float64_losses import gap, turned
from ponder.errors import UsageError
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.nets.lora import LoRA
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.objective import KL, Objective, Stats, Tokens
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.policy_gradient import GRPO
from ponder.types import Step, Trace, ids
from reference_decoder import plain_logprobs, weights64

PLAIN = GRPO(kl=None)


def credited(rule: Objective = PLAIN, tool: bool = True) -> list[Trace]:
    traces = mixed_groups(tool=tool)
    rule.credit(traces, "wanted", {})
    return traces


def grpo(of: Sequence[float64_losses.Part]) -> Tensor:
    return float64_losses.grpo(of, beta=0.0)


def same(net: Decoder, other: dict[str, Tensor]) -> bool:
    return all(torch.equal(p, other[n]) for n, p in net.state_dict().items())


# the step


@pytest.mark.parametrize(
    ("kind", "beta"), [("llama", 0.0), ("llama", 0.04), ("untied", 0.04), ("window", 0.0), ("gemma", 0.04)]
)
def test_loss_and_gradient(kind: str, beta: float) -> None:
    net = tiny_decoder(kind)
    learner = Learner(net, GRPO(kl=KL(beta) if beta else None), AdamW(lr=1e-9, max_grad_norm=float("inf")))
    perturb(net)
    traces = credited()
    loss, expected = float64_losses.step(lambda of: float64_losses.grpo(of, beta), net, traces, learner.reference)
    assert gap(learner.gradient(traces), expected) < 1e-5
    assert all(p.grad is None for p in net.parameters()), "asking for a gradient leaves none behind"
    metrics = learner.step(traces)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)
    norm = float(torch.cat([g.flatten() for g in expected.values()]).norm())
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_sft_is_the_token_mean_over_answers() -> None:
    traces, net = credited(SFT()), tiny_decoder()
    loss, expected = float64_losses.step("sft", net, traces)
    assert gap(Learner(net, SFT()).gradient(traces), expected) < 1e-5
    output = Learner(net, SFT()).step(traces)
    assert output["loss"] == pytest.approx(loss, rel=1e-5)
    written = [len(s.token_ids) for t in traces for s in t.steps[1:] if s.sampled]
    assert output["num_trained_tokens"] == sum(written), "no prompt and no tool's token is in the loss"


def test_step_is_adamw() -> None:
    net, traces = tiny_decoder(), credited()
    manual = copy.deepcopy(net)
    adam = torch.optim.AdamW(manual.parameters(), lr=0.01, weight_decay=0.0)
    learner = Learner(net, PLAIN, AdamW(lr=0.01, max_grad_norm=0.5))
    for _ in range(2):
        _, grads = float64_losses.step(grpo, manual, traces)
        for name, p in manual.named_parameters():
            p.grad = grads[name].float()
        torch.nn.utils.clip_grad_norm_(manual.parameters(), 0.5)
        adam.step()
        learner.step(traces)
    start = tiny_decoder()
    moved = [float((p - q).detach().norm()) for p, q in zip(manual.parameters(), start.parameters(), strict=True)]
    off = [float((p - q).detach().norm()) for p, q in zip(manual.parameters(), net.parameters(), strict=True)]
    assert max(off) < 1e-3 * max(moved)


def test_gradient_is_independent_of_order_and_tree_depth() -> None:
    """A completion cut into two steps, with the cut shared by two branches, is the same sequences."""
    start, left, right = [9, 11, 5], [20, 21, 2], [30, 2]
    flat = trace_group([4, 7], [[*start, *left], [*start, *right]])
    for step in flat.steps[1:]:
        step.advantages = np.array([0.0] * 3 + [1.5] * (len(step.token_ids) - 3), np.float32)
    deep = trace_group([4, 7], [start])
    for tokens in (left, right):
        deep.add(Step(1, "", ids(tokens), advantages=np.full(len(tokens), 1.5, np.float32)))

    @dataclass(frozen=True)
    class Flat(GRPO):
        kl: KL = None

        def weigh(self, lengths: Sequence[int]) -> NDArray[np.float64]:
            return np.full(len(lengths), 0.1)

    expected = Learner(tiny_decoder(), Flat()).gradient([flat])
    assert turned(Learner(tiny_decoder(), Flat()).gradient([deep]), expected) < 1e-6
    more = credited()
    first = Learner(tiny_decoder(), Flat()).gradient([*more, deep])
    assert turned(Learner(tiny_decoder(), Flat()).gradient([deep, *reversed(more)]), first) < 1e-6


def test_groups_of_equal_rewards_still_count_in_the_denominator() -> None:
    traces = credited()
    assert not traces[1].steps[1].advantages.any()
    _, expected = float64_losses.step(grpo, tiny_decoder(), traces)
    assert gap(Learner(tiny_decoder(), PLAIN).gradient(traces), expected) < 1e-5
    without = Learner(tiny_decoder(), PLAIN).gradient([traces[0], *traces[2:]])
    assert gap(without, expected) > 1e-2, "leaving them out of the count would show"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a processor without bfloat16 says so
def test_a_bfloat16_network_has_a_float32_gradient() -> None:
    net, traces = tiny_decoder(dtype=torch.bfloat16), credited()
    result = Learner(net, PLAIN, max_tokens_per_microbatch=20).gradient(traces)
    _, expected = float64_losses.step(grpo, net, traces)
    assert {g.dtype for g in result.values()} == {torch.float32} and turned(result, expected) < 0.05


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_gradient_checkpointing_gives_same_gradient(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ponder.nets import decoder

    traces, again = credited(), []
    real = decoder.checkpoint
    monkeypatch.setattr(decoder, "checkpoint", lambda *a, **k: again.append(1) or real(*a, **k))
    plain, less = (
        Learner(tiny_decoder(kind), GRPO(), gradient_checkpointing=r).gradient(traces) for r in (False, True)
    )
    assert len(again) == 2, "each layer"
    assert turned(less, plain) < 1e-6


# what is recorded


def test_sampling_logp_difference_is_recorded() -> None:
    """The gap between sampler and learner is measured on tokens that were sampled, and on no others."""
    net, traces = tiny_decoder(), credited(tool=False)
    single = [p.new_t.detach() for p in float64_losses.parts(net, weights64(net), traces)]
    steps = [s for t in traces for s in t.steps if s.advantages is not None]
    for step, true in zip(steps, single, strict=True):
        step.logprobs = true.numpy().astype(np.float32)
    steps[0].logprobs = steps[0].logprobs - np.float32([0.5, 0, 0])
    steps[-1].logprobs = None
    output = Learner(net, PLAIN).step(traces)
    assert output["sampling/sampling_logp_difference/max"] == pytest.approx(0.5, abs=1e-4)
    known = sum(len(s.token_ids) for s in steps[:-1] if s.advantages.any())
    assert output["sampling/sampling_logp_difference/mean"] == pytest.approx(0.5 / known, abs=1e-4)
    assert output["num_trained_tokens"] == known + 1


def test_all_three_kls_are_recorded_and_the_reference_stays() -> None:
    net, rule = tiny_decoder(), GRPO()
    learner = Learner(net, rule, AdamW(lr=1e-2))
    before = copy.deepcopy(learner.reference.state_dict())
    output = [learner.step(credited(rule)) for _ in range(2)]
    assert output[0]["kl"] == 0 and {"kl", "kl/k1", "kl/k2"} <= output[1].keys() and output[1]["kl"] > 0
    assert same(learner.reference, before)
    assert Learner(tiny_decoder(), PLAIN).reference is None, "no second model where none is needed"


def test_on_progress_gets_shares_up_to_one() -> None:
    shares: list[float] = []
    Learner(tiny_decoder(), PLAIN, max_tokens_per_microbatch=20, epochs_per_batch=2).step(credited(), shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(set(shares)) == len(shares) > 2


def test_no_gradient_takes_no_step() -> None:
    net = tiny_decoder()
    before = copy.deepcopy(net.state_dict())
    traces = [trace_group([4, 5], [[7, 2], [8, 2]], [1.0, 1.0])]
    PLAIN.credit(traces, "wanted", {})
    learner = Learner(net, PLAIN, AdamW(lr=1.0))
    for nothing in (traces, []):
        assert learner.step(nothing) == {"loss": 0.0, "grad_norm": 0.0, "lr": 1.0}
    assert learner.master_weights.steps == 0 and same(net, before)


# several optimiser steps


def test_minibatches_have_denominators_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an optimiser step: its gradient is the formula's over its own traces."""
    traces, net = credited(tool=False), tiny_decoder()
    learner = Learner(net, PLAIN, AdamW(lr=1e-9, max_grad_norm=float("inf")), minibatches=2)
    expected = [float64_losses.step(grpo, net, part)[1] for part in (traces[:2], traces[2:])]
    result: list[float64_losses.Grads] = []
    real = MasterWeights.own_grad_norm

    def keep(self: MasterWeights) -> Tensor | None:
        result.append({n: g.clone() for n, g in self.gradients().items()})
        return real(self)

    monkeypatch.setattr(MasterWeights, "own_grad_norm", keep)
    learner.step(traces)
    assert len(result) == 2 and learner.master_weights.steps == 2
    assert max(gap(f, e) for f, e in zip(result, expected, strict=True)) < 1e-5


def test_ratio_moves_in_later_epochs_and_notes_are_removed() -> None:
    traces, ratios = credited(), []

    class Spy(GRPO):
        def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
            ratios.append(float((tokens.logprobs_N - tokens.old_N).abs().max().detach()))
            return super().loss(tokens)

    output = Learner(
        tiny_decoder(), Spy(kl=None), AdamW(lr=0.05), epochs_per_batch=3, max_tokens_per_microbatch=20
    ).step(traces)
    first = len(ratios) // 3
    assert first > 1 and max(ratios[:first]) < 1e-5 and min(ratios[first:]) > 1e-3
    assert output["clip_ratio/region_mean"] > 0
    assert not any("old" in s.notes for t in traces for s in t.steps)


def test_beside_device_is_called_once_before_the_last_weights() -> None:
    """The traces are then as the step leaves them, and its result is that of a step without."""
    traces, again = credited(), credited()
    learners = [Learner(tiny_decoder(), PLAIN, AdamW(lr=0.05), epochs_per_batch=3) for _ in range(2)]
    seen: list[tuple[int, bool]] = []

    def look() -> None:
        seen.append((learners[0].master_weights.steps, any("old" in s.notes for t in traces for s in t.steps)))

    output = learners[0].step(traces, beside_device=look)
    assert seen == [(2, False)]
    assert output == learners[1].step(again)
    assert same(learners[0].net, dict(learners[1].net.state_dict()))


# what does not learn


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_frozen_layers_neither_change_nor_get_a_gradient(kind: str) -> None:
    net = tiny_decoder(kind)
    before = copy.deepcopy(net.state_dict())
    learner = Learner(net, PLAIN, AdamW(lr=0.1), frozen_layers=1)
    traces = credited()
    result = learner.gradient(traces)
    _, expected = float64_losses.step(grpo, net, traces)
    assert all(n.startswith(("layers.1.", "norm.")) for n in result)
    assert gap(result, {n: expected[n] for n in result}) < 1e-5, "what is left learns as it would have"
    learner.step(traces)
    assert {n for n, p in net.state_dict().items() if not torch.equal(before[n], p)} == set(result)
    Learner(net, PLAIN)
    assert all(p.requires_grad for p in net.parameters()), "another learner thaws them"


def test_reference_shares_frozen_weights() -> None:
    net, traces = tiny_decoder("untied"), credited(GRPO())
    learner = Learner(net, GRPO(), AdamW(lr=0.1), frozen_layers=1)
    before = copy.deepcopy(learner.reference.state_dict())
    theirs = dict(learner.reference.named_parameters())
    shared = {n for n, p in net.named_parameters() if p.data_ptr() == theirs[n].data_ptr()}
    assert shared == {n for n, p in net.named_parameters() if not p.requires_grad} and len(shared) > 5
    learner.step(traces)
    assert same(learner.reference, before) and not any(p.requires_grad for p in theirs.values())


def test_adapters_learn_alone_and_reference_is_shared() -> None:
    net, traces = tiny_decoder(), credited(GRPO())
    start = copy.deepcopy(net)
    lora.attach(net, LoRA(rank=2), seed=0)
    learner = Learner(net, GRPO(), AdamW(lr=0.05))
    assert learner.reference is net
    output = [learner.step(traces) for _ in range(3)]
    assert set(learner.master_weights.params) == {n for n, _ in net.named_parameters() if ".lora_" in n}
    assert output[0]["kl"] == 0 and output[2]["kl"] > 0
    fresh = credited(GRPO())
    learner.write_reference_logprobs(fresh)
    for trace in fresh:
        for i, step in enumerate(trace.steps):
            if step.sampled:
                result = plain_logprobs(start, weights64(start), trace.token_ids(i).tolist(), len(step.token_ids))
                assert np.allclose(step.notes["reference"], result.detach(), atol=1e-5), "as it was at first"


@pytest.mark.parametrize("layers", [-1, 2, 5])
def test_freezing_all_layers_is_refused(layers: int) -> None:
    with pytest.raises(UsageError, match="frozen_layers"):
        Learner(tiny_decoder(), GRPO(), frozen_layers=layers)
