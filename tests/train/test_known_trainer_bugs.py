"""Mistakes that other trainers have shipped, by their numbers: the right thing holds, and the wrong one is caught.

Each test runs as things are, and again with the mistake put in: the same assertions must then fail. Here are those of
the learner; 3, 4, 15 and 16 are in test_mistakes_of_credit.py, those of the whole loop (5, 7, 15, 18, 19, 20) in
tests/pipelines/test_training_errors.py, and every algorithm's cuts in test_invariance.py and test_peers.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import float64_losses
from fakes import fails_if, mixed_groups, perturb, tiny_decoder, trace_group
from float64_losses import gap, turned
from ponder.errors import UsageError
from ponder.nets import decoder, lora
from ponder.nets.lora import LoRA
from ponder.train import chunked_lm_head, credit, losses, pack, readouts
from ponder.train import learner as learning
from ponder.train.distill import Distill
from ponder.train.learner import Learner
from ponder.train.objective import KL, Objective
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.policy_gradient import DAPO, GRPO
from ponder.types import Score, Trace
from reference_decoder import plain_logprobs, weights64

Patch = pytest.MonkeyPatch
PLAIN = GRPO(kl=None)
both = pytest.mark.parametrize("broken", [False, True], ids=["right", "mistake"])


def credited(rule: Objective = PLAIN, **kind: Any) -> list[Trace]:
    traces = mixed_groups(**kind)
    rule.credit(traces, "wanted", {})
    return traces


def grpo(of: Sequence[float64_losses.Part]) -> Tensor:
    return float64_losses.grpo(of, beta=0.0)


def packed_with(change: Callable[[pack.PackedBatch], pack.PackedBatch]) -> Callable[..., pack.PackedBatch]:
    return lambda *args: change(pack.pack(*args))


def instead(module: Any, **others: Any) -> Any:
    """A module with some of its functions replaced, for one that imports it."""
    mine = {name: staticmethod(other) for name, other in others.items()}
    return type("Instead", (), {**mine, "__getattr__": lambda self, name: getattr(module, name)})()


@both
def test_1_denominators_are_those_of_the_whole_step(broken: bool, monkeypatch: Patch) -> None:
    if broken:  # a mean per micro-batch
        local = packed_with(lambda b: replace(b, weight_N=b.weight_N / b.weight_N.sum()))
        monkeypatch.setattr(learning, "pack", local)
    with fails_if(broken):
        cuts = [
            Learner(tiny_decoder(), PLAIN, max_tokens_per_microbatch=n).gradient(credited()) for n in (10**9, 20, 1)
        ]
        assert turned(cuts[1], cuts[0]) < 1e-6 and turned(cuts[2], cuts[0]) < 1e-6


@pytest.mark.parametrize("mistake", ["", "undecided", "tool", "truncated"])
def test_2_masked_tokens_leave_numerator_and_denominator(mistake: str, monkeypatch: Patch) -> None:
    """The undecided answer, the tool's output, an answer that met its budget: as if they had not been there."""
    rule, real = DAPO(mask_truncated=True), credit.scored_answers
    traces = mixed_groups()
    traces[0].steps[2].stop = "length"
    bare = mixed_groups()
    bare[0] = trace_group(bare[0].steps[0].token_ids, [bare[0].steps[i].token_ids for i in (1, 3, 4)], [1.0, 0.0, 1.0])
    bare[2] = trace_group(bare[2].steps[0].token_ids, [bare[2].steps[i].token_ids for i in (1, 3)], [0.3, 0.9])
    rule.credit(bare, "wanted", {})
    assert bare[-1].steps[3].advantages is None
    expected = float64_losses.step("dapo", tiny_decoder(), bare)[1]
    if mistake == "truncated":
        monkeypatch.setattr(credit, "scored_answers", lambda t, s, include_truncated=True: real(t, s))
    if mistake == "undecided":  # unknown taken as 0
        traces[2].steps[2].scores["wanted"] = Score(0.0)
    rule.credit(traces, "wanted", {})
    if mistake == "tool":
        traces[-1].steps[3].advantages = np.zeros(4, np.float32)  # no weight above, but counted below
    with fails_if(bool(mistake)):
        result = Learner(tiny_decoder(), rule).gradient(traces)
        assert gap(result, expected) < 1e-5


def everywhere(heat: float) -> None:
    """New, old, the reference's and a teacher's probabilities, and the sampler's, at one temperature."""
    net = tiny_decoder()
    learner = Learner(net, GRPO(), temperature=heat)
    perturb(net)
    traces = credited()
    _, expected = float64_losses.step("grpo", net, traces, learner.reference, heat)
    assert gap(learner.gradient(traces), expected) < 1e-5
    learner.write_notes(traces, [s for t in traces for s in t.steps if s.sampled], "old", net)
    for name, model in (("old", net), ("reference", learner.reference)):
        w = weights64(model)
        for trace in traces:
            for i in (i for i, s in enumerate(trace.steps) if s.sampled):
                true = plain_logprobs(net, w, trace.token_ids(i).tolist(), len(trace.steps[i].token_ids), heat)
                assert np.allclose(trace.steps[i].notes[name], true.detach(), atol=1e-5)
    teacher = Learner(net, Distill(), temperature=heat, reference=learner.reference)
    given = credited(Distill())
    assert gap(teacher.gradient(given), float64_losses.step("distill", net, given, learner.reference, heat)[1]) < 1e-5


@pytest.mark.parametrize("mistake", ["", "token_logprobs", "divergence"])
def test_5_temperature_is_in_every_log_probability(mistake: str, monkeypatch: Patch) -> None:
    """And never in values: test_critic.py. What the sampler says of its draws: test_5 in tests/pipelines."""
    if mistake:
        real, at = getattr(readouts, mistake), {"token_logprobs": 3, "divergence": 4}[mistake]
        monkeypatch.setattr(readouts, mistake, lambda *a: real(*a[:at], 1.0, *a[at + 1 :]))
    with fails_if(bool(mistake)):
        everywhere(0.7)


@pytest.mark.parametrize(("passes", "minibatches"), [(3, 1), (2, 2)])
@both
def test_6_old_logprobs_are_from_before_the_first_update(
    passes: int, minibatches: int, broken: bool, monkeypatch: Patch
) -> None:
    if broken:  # old = current in each pass and mini-batch
        monkeypatch.setattr(readouts.LogprobReadout, "needs_old_logprobs", False)
    traces = credited()
    learner = Learner(
        tiny_decoder(),
        PLAIN,
        AdamW(lr=0.02, max_grad_norm=float("inf")),
        epochs_per_batch=passes,
        minibatches=minibatches,
    )
    manual, start = tiny_decoder(), tiny_decoder()
    adam = torch.optim.AdamW(manual.parameters(), lr=0.02, weight_decay=0.0)
    parts = [traces[:2], traces[2:]] if minibatches == 2 else [traces]
    noted = copy.deepcopy(parts)
    w = weights64(start)
    for trace in (t for part in noted for t in part):
        for i, step in enumerate(trace.steps):
            if step.sampled:
                path = trace.token_ids(i).tolist()
                step.notes["old"] = plain_logprobs(start, w, path, len(step.token_ids)).detach().numpy()
    for part in noted * passes:
        _, grads = float64_losses.step(grpo, manual, part)
        for name, p in manual.named_parameters():
            p.grad = grads[name].float()
        adam.step()
    learner.step(traces)
    moved, off = (
        max(float((p - q).detach().norm()) for p, q in zip(manual.parameters(), other.parameters(), strict=True))
        for other in (start, learner.net)
    )
    with fails_if(broken):
        assert off < 1e-3 * moved


MISTAKEN = [None, lambda a, b: losses.k3(a.detach(), b) + 0 * a, lambda a, b: -losses.k3(a, b), losses.k1]


@pytest.mark.parametrize("mistake", MISTAKEN, ids=["right", "no gradient", "other sign", "k1"])
def test_8_kl_in_the_loss_pulls_back(mistake: Callable[[Tensor, Tensor], Tensor] | None, monkeypatch: Patch) -> None:
    """Only beta, no advantages: the gradient lives, is the formula's, and steps lower the KL."""
    if mistake is not None:
        monkeypatch.setitem(losses.KL_ESTIMATORS, "k3", mistake)
    net = tiny_decoder()
    learner = Learner(net, GRPO(kl=KL(1.0)), AdamW(lr=1e-3))
    perturb(net)
    traces = credited(tool=False)
    for step in (s for t in traces for s in t.steps[1:]):
        step.advantages = np.zeros(len(step.token_ids), np.float32)
    _, expected = float64_losses.step(lambda of: float64_losses.grpo(of, 1.0), net, traces, learner.reference)
    with fails_if(mistake is not None):
        result = learner.gradient(traces)
        assert max(float(g.norm()) for g in result.values()) > 0 and gap(result, expected) < 1e-5
        kept = [learner.step(traces)["kl"] for _ in range(4)]
        assert kept[0] > kept[1] > kept[2] > kept[3] >= 0
    with pytest.raises(UsageError, match="k1 in the loss has no gradient"):
        KL(1.0, "k1", "loss")


@pytest.mark.parametrize("mistake", ["", "ratio", "weight"])
def test_9_no_zero_times_infinity(mistake: str, monkeypatch: Patch) -> None:
    """A token that earned nothing and whose ratio overflows, a completion that weighs nothing and whose loss does."""

    class Some(GRPO):
        def weigh(self, lengths: Sequence[int]) -> np.ndarray:
            return np.array([0.0, *super().weigh(lengths)[1:]])

        def loss(self, tokens: Any) -> Any:
            loss_N, stats = super().loss(tokens)
            return loss_N + torch.where(tokens.sequence_N == 0, torch.inf, 0.0), stats

    if mistake == "ratio":
        monkeypatch.setattr(losses, "ratio", lambda new, old: (new - old).exp())
    traces = credited(tool=False)
    for step in (s for t in traces for s in t.steps if s.advantages is not None):
        step.notes["old"] = np.full(len(step.token_ids), -5.0, np.float32)
    spared = traces[0].steps[2]
    spared.advantages = spared.advantages * np.float32([0, 1, 1, 1, 1, 1])
    spared.notes["old"][0] = -300.0
    learner = Learner(tiny_decoder(), Some(kl=None), AdamW(lr=1e-3))
    if mistake == "weight":  # loss x weight, and no more
        monkeypatch.setattr(learning, "torch", instead(torch, where=lambda mask, this, other: this))
    with fails_if(bool(mistake)):
        metrics = learner.step(traces)
        assert np.isfinite(metrics["loss"]) and np.isfinite(metrics["grad_norm"]) and learner.master_weights.steps == 1


@both
def test_10_disabled_adapters_are_the_reference_only_if_they_started_at_zero(
    broken: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    if broken:
        monkeypatch.setattr(lora, "starts_at_zero", lambda net: True)
    first = tiny_decoder()
    lora.attach(first, LoRA(rank=2), seed=0)
    perturb(first, 0.1)
    lora.save(first, LoRA(rank=2), tmp_path / "adapter", "tiny")
    net = tiny_decoder()
    lora.load(net, tmp_path / "adapter")
    begun = tiny_decoder()
    begun.load_state_dict(lora.merged_weights(net), strict=False)
    learner, traces = Learner(net, GRPO(), AdamW(lr=0.05)), credited()
    learner.step(credited())
    learner.write_reference_logprobs(traces)
    with fails_if(broken):
        for trace in traces:
            for i in (i for i, s in enumerate(trace.steps) if s.sampled):
                step, w = trace.steps[i], weights64(begun)
                true = plain_logprobs(begun, w, trace.token_ids(i).tolist(), len(step.token_ids)).detach()
                assert np.allclose(step.notes["reference"], true, atol=1e-4)


@both
def test_11_eos_is_trained_even_if_it_is_the_pad_token(broken: bool, monkeypatch: Patch) -> None:
    """Never a second end: test_sft.py. Padding with it: test_invariance.py."""
    net = tiny_decoder()
    net.config = replace(net.config, pad=2)
    if broken:  # masked by id, not by length
        by_id = packed_with(lambda b: replace(b, weight_N=b.weight_N * (b.target_N != net.config.pad)))
        monkeypatch.setattr(learning, "pack", by_id)
    traces = credited()
    with fails_if(broken):
        assert gap(Learner(net, PLAIN).gradient(traces), float64_losses.step(grpo, tiny_decoder(), traces)[1]) < 1e-5


@pytest.mark.parametrize("kind", ["untied", "window", "gemma"])
@both
def test_12_packed_batch_equals_single_sequences(kind: str, broken: bool, monkeypatch: Patch) -> None:
    if broken:  # positions that count on through the pack
        real = learning.make_tree_attention

        def running(*args: Any) -> Any:
            result = real(*args)
            result.positions_T = torch.arange(len(result.positions_T))
            return result

        monkeypatch.setattr(learning, "make_tree_attention", running)
    net, traces = tiny_decoder(kind), credited()
    learner = Learner(net, PLAIN)
    batch = pack.pack(pack.plan(traces, PLAIN.weigh, trains_zero_advantage=True), net.device)
    with torch.no_grad():
        result = learner.readout.loss_inputs(learner, batch).logprobs_N
    paths = {id(s): t.token_ids(i).tolist() for t in traces for i, s in enumerate(t.steps)}
    w = weights64(net)
    alone = torch.cat([plain_logprobs(net, w, paths[id(s)], len(s.token_ids)).detach() for s in batch.steps])
    with fails_if(broken):
        assert float((result - alone).abs().max()) < 1e-5


@both
def test_13_no_dropout(broken: bool, monkeypatch: Patch) -> None:
    if broken:
        real = decoder.MLP.forward
        monkeypatch.setattr(decoder.MLP, "forward", lambda self, x, _: F.dropout(real(self, x), 0.1, self.training))
    net = tiny_decoder()
    lora.attach(net, LoRA(rank=2), seed=0)
    active = [m for m in net.modules() if isinstance(m, torch.nn.Dropout) and m.p > 0]
    net.requires_grad_(True)
    with fails_if(broken):
        one, two = (Learner(net.train(mode), PLAIN).gradient(credited()) for mode in (True, False))
        assert not active and gap(one, two) == 0


@both
def test_14_lm_head_keeps_no_logits(broken: bool, monkeypatch: Patch) -> None:
    kept: list[tuple[int, ...]] = []
    if broken:
        monkeypatch.setattr(readouts, "token_logprobs", float64_losses.full_logprobs)
    learner = Learner(tiny_decoder(), PLAIN)
    batch = pack.pack(pack.plan(credited(), PLAIN.weigh, trains_zero_advantage=True), learner.net.device)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        learner.readout.loss_inputs(learner, batch)
    with fails_if(broken):
        assert kept and (len(batch.target_N), learner.net.config.vocab) not in kept


@both
def test_14_lm_head_sums_in_float32(broken: bool, monkeypatch: Patch) -> None:
    """Many small pieces in bfloat16: a running bfloat16 sum would stop growing."""
    monkeypatch.setattr(chunked_lm_head, "_CHUNK_BYTES", 1)
    if broken:
        monkeypatch.setattr(chunked_lm_head, "at_least_float32", lambda x: x)
    count, width, vocab = 600, 8, 40
    hidden = torch.full((count, width), 0.1, dtype=torch.bfloat16)
    weight = torch.zeros(vocab, width, dtype=torch.bfloat16, requires_grad=True)
    chunked_lm_head.token_logprobs(hidden, weight, torch.zeros(count, dtype=torch.long), 1.0)[0].sum().backward()
    with fails_if(broken):
        assert float(weight.grad[0, 0]) == pytest.approx(count * (1 - 1 / vocab) * 0.1, rel=0.02)


@both
def test_17_clipping_is_by_the_global_norm(broken: bool, monkeypatch: Patch) -> None:
    """Not that of a micro-batch, nor of a single weight: after one step Adam's first moment is 0.1 x the clipped."""
    if broken:
        largest = lambda self: max(g.norm() for g in self.gradients().values())  # noqa: E731
        monkeypatch.setattr(MasterWeights, "own_grad_norm", largest)
    learner = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-3, max_grad_norm=0.01), max_tokens_per_microbatch=20)
    whole = torch.cat([g.flatten() for g in learner.gradient(credited()).values()])
    metrics = learner.step(credited())
    moment = torch.cat([t.flatten() for n, t in learner.tensors().items() if n.startswith("exp_avg.")])
    with fails_if(broken):
        assert metrics["grad_norm"] == pytest.approx(float(whole.norm()), rel=1e-5)
        assert float(moment.norm()) == pytest.approx(0.1 * 0.01, rel=1e-4)


def test_17_nonfinite_step_is_skipped() -> None:
    """How it is skipped, recorded and given up: test_trouble.py. That no weight takes it either: test_finite.py."""
    traces = credited()
    traces[0].steps[1].advantages = np.array([np.inf, 1, 1], np.float32)
    learner = Learner(tiny_decoder(), PLAIN)
    metrics = learner.step(traces)
    assert metrics.get("skipped_steps") == 1 and all(p.isfinite().all() for p in learner.net.parameters())
