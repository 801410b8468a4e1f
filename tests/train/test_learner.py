"""The learner's gradient against a slow reference: float64, one sequence at a time, nothing packed or shared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import group, plain_logprobs, tiny, weights64
from ponder.errors import UsageError
from ponder.nets.decoder import Decoder
from ponder.train import learner as learning
from ponder.train import losses, objective, pack
from ponder.train.learner import Diverged, Learner
from ponder.train.objective import GRPO, SFT, Objective
from ponder.train.optimiser import AdamW
from ponder.types import Step, Trace, ids

Grads = dict[str, Tensor]


def world(objective: Objective = GRPO(), seed: int = 0) -> list[Trace]:
    """Four groups: mixed rewards, all equal, one undecided, and a single-token completion."""
    rng = np.random.default_rng(seed)

    def write(n: int) -> list[int]:
        return [*rng.integers(3, 64, n - 1), 2]  # ends in EOS

    groups = [
        group(rng.integers(3, 64, 5), [write(n) for n in (3, 6, 1, 4)], [1.0, 0.0, 0.0, 1.0]),
        group(rng.integers(3, 64, 2), [write(n) for n in (5, 5)], [1.0, 1.0]),
        group(rng.integers(3, 64, 7), [write(n) for n in (2, 7, 3)], [0.3, None, 0.9]),
        group(rng.integers(3, 64, 1), [write(n) for n in (4, 1)], [0.0, 1.0]),
    ]
    for trace in groups:
        objective.credit(trace, "wanted")
    return groups


def apart(net: Decoder, by: float = 0.02) -> None:
    """Move the weights, so that policy and reference differ."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * by)


def reference_step(
    net: Decoder,
    traces: Sequence[Trace],
    clip: float = 0.2,
    beta: float = 0.0,
    reference: Decoder | None = None,
    heat: float = 1.0,
    olds: list[Tensor] | None = None,
) -> tuple[float, Grads, list[Tensor]]:
    """GRPO from its formula: mean over tokens, then over completions; the log-probabilities it had as well."""
    w = weights64(net)
    fixed = None if reference is None else {n: p.detach() for n, p in weights64(reference).items()}
    terms: list[Tensor] = []
    seen: list[Tensor] = []
    for trace in traces:
        for step in trace.steps:
            if step.advantages is None:
                continue
            path = [*trace.steps[0].token_ids.tolist(), *step.token_ids.tolist()]
            new = plain_logprobs(net, w, path, len(step.token_ids), heat)
            old = new.detach() if olds is None else olds[len(seen)]
            a = torch.tensor(step.advantages, dtype=torch.float64)
            rho = (new - old).exp()
            loss = -torch.minimum(rho * a, rho.clamp(1 - clip, 1 + clip) * a)
            if fixed is not None:
                gap = plain_logprobs(net, fixed, path, len(step.token_ids), heat) - new
                loss = loss + beta * (gap.exp() - 1 - gap)
            terms.append(loss.mean())
            seen.append(new.detach())
    total = torch.stack(terms).mean()
    total.backward()
    return float(total.detach()), {n: x.grad for n, x in w.items() if x.grad is not None}, seen


def gap(found: Grads, expected: Grads) -> float:
    """Largest relative distance of any parameter's gradient."""
    assert found.keys() == expected.keys()
    size = max(float(g.norm()) for g in expected.values())
    return max(
        float((found[n].double() - expected[n].double()).norm()) / max(float(expected[n].norm()), 1e-2 * size)
        for n in expected
    )


def turned(found: Grads, expected: Grads) -> float:
    """Relative distance of the whole gradient."""
    assert found.keys() == expected.keys()
    off = sum(float((found[n] - expected[n]).double().square().sum()) for n in expected)
    return (off / sum(float(g.double().square().sum()) for g in expected.values())) ** 0.5


def gradient(net: Decoder, traces: Sequence[Trace], objective: Objective, **settings: Any) -> Grads:
    return Learner(net, objective, **settings).gradient(traces)


# against the formula


@pytest.mark.parametrize(
    ("kind", "beta"), [("llama", 0.0), ("llama", 0.04), ("untied", 0.04), ("window", 0.0), ("gemma", 0.04)]
)
def test_grpo_loss_and_gradient(kind: str, beta: float) -> None:
    net = tiny(kind)
    learner = Learner(net, GRPO(beta=beta), AdamW(lr=1e-9, max_norm=float("inf")))
    apart(net)
    traces = world()
    loss, grads, _ = reference_step(net, traces, beta=beta, reference=learner.reference)
    found = learner.gradient(traces)
    assert gap(found, grads) < 1e-5
    assert learner.step(traces)["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("heat", [0.7, 1.3])
def test_temperature_is_in_policy_and_reference(heat: float) -> None:
    net = tiny()
    learner = Learner(net, GRPO(beta=0.5), temperature=heat)
    apart(net)
    traces = world()
    _, grads, _ = reference_step(net, traces, beta=0.5, reference=learner.reference, heat=heat)
    assert gap(learner.gradient(traces), grads) < 1e-5
    learner.temperature = 1.0  # the mistake
    assert gap(learner.gradient(traces), grads) > 1e-2


def test_sft_is_the_token_mean_over_answers() -> None:
    traces = world(SFT())
    net = tiny()
    w = weights64(net)
    terms = [
        -plain_logprobs(net, w, [*t.steps[0].token_ids.tolist(), *s.token_ids.tolist()], len(s.token_ids))
        for t in traces
        for s in t.steps[1:]
    ]
    total = torch.cat(terms).mean()
    total.backward()
    expected = {n: x.grad for n, x in w.items() if x.grad is not None}
    assert gap(gradient(net, traces, SFT()), expected) < 1e-5
    metrics = Learner(net, SFT()).step(traces)
    assert metrics["loss"] == pytest.approx(float(total.detach()), rel=1e-5)
    assert metrics["num_trained_tokens"] == sum(map(len, terms)), "no prompt token is in the loss"


# nothing but memory may depend on how the work is cut (mistake 1)

Check = Callable[[], None]


@pytest.fixture
def same_for_any_cut() -> Check:
    def check() -> None:
        traces = world()
        cuts = [gradient(tiny(), traces, GRPO(beta=0.0), micro_tokens=n) for n in (10**9, 20, 1)]
        assert turned(cuts[1], cuts[0]) < 1e-6 and turned(cuts[2], cuts[0]) < 1e-6

    return check


def test_micro_batches_do_not_change_the_gradient(same_for_any_cut: Check) -> None:
    assert len(list(pack.batches(pack.plan(world(), GRPO().weigh, False), 20, torch.device("cpu")))) > 1
    same_for_any_cut()


def test_a_denominator_per_micro_batch_is_caught(same_for_any_cut: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def local(trees: Any, most: int, device: torch.device) -> Iterator[pack.Batch]:
        for batch in pack.batches(trees, most, device):
            yield replace(batch, weight_N=batch.weight_N / batch.weight_N.sum())

    monkeypatch.setattr(learning, "batches", local)
    with pytest.raises(AssertionError):
        same_for_any_cut()


def alone(traces: Sequence[Trace]) -> list[Trace]:
    """Each completion as its own trace, with its own copy of the prompt."""
    out = []
    for trace in traces:
        for step in trace.steps[1:]:
            single = Trace(trace.problem, [copy.deepcopy(trace.steps[0])])
            single.add(copy.deepcopy(step))
            out.append(single)
    return out


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_sharing_the_prompt_does_not_change_the_gradient(kind: str) -> None:
    traces = world()
    shared = gradient(tiny(kind), traces, GRPO(beta=0.0))
    assert turned(gradient(tiny(kind), alone(traces), GRPO(beta=0.0)), shared) < 1e-6


def test_order_and_a_deeper_tree_do_not_change_the_gradient() -> None:
    """A completion cut into two steps, with the cut shared by two branches, is the same sequences."""
    head, left, right = [9, 11, 5], [20, 21, 2], [30, 2]
    flat = group([4, 7], [[*head, *left], [*head, *right]])
    for step in flat.steps[1:]:
        step.advantages = np.array([0.0] * 3 + [1.5] * (len(step.token_ids) - 3), np.float32)
    deep = group([4, 7], [head])
    for tokens in (left, right):
        deep.add(Step(1, "", ids(tokens), advantages=np.full(len(tokens), 1.5, np.float32)))

    def by_token(lengths: Sequence[int]) -> list[np.ndarray]:
        return [np.full(n, 0.1) for n in lengths]

    @dataclass(frozen=True)
    class Flat(GRPO):
        beta: float = 0.0

        def weigh(self, lengths: Sequence[int]) -> list[np.ndarray]:
            return by_token(lengths)

    expected = gradient(tiny(), [flat], Flat())
    assert turned(gradient(tiny(), [deep], Flat()), expected) < 1e-6
    more = world()
    first = gradient(tiny(), [*more, deep], Flat())
    assert turned(gradient(tiny(), [deep, *reversed(more)], Flat()), first) < 1e-6


def test_groups_of_equal_rewards_still_count_in_the_denominator() -> None:
    traces = world()
    assert not traces[1].steps[1].advantages.any()
    _, expected, _ = reference_step(tiny(), traces)
    assert gap(gradient(tiny(), traces, GRPO(beta=0.0)), expected) < 1e-5

    noisy = copy.deepcopy(traces)  # keep them in the batch: an advantage too small to matter, but not 0
    for step in noisy[1].steps[1:]:
        step.advantages = np.full(len(step.token_ids), 1e-12, np.float32)
    assert gap(gradient(tiny(), noisy, GRPO(beta=0.0)), expected) < 1e-5

    trees = pack.plan(traces, GRPO().weigh, keep_zero=False)
    assert len(trees) == 3, "and yet nothing is computed for them"
    without = gradient(tiny(), [traces[0], *traces[2:]], GRPO(beta=0.0))
    assert gap(without, expected) > 1e-2, "leaving them out of the count would show"


def test_undecided_completions_leave_numerator_and_denominator() -> None:
    traces = world()
    _, expected, _ = reference_step(tiny(), traces)
    undecided = traces[2].steps[2]
    assert undecided.advantages is None
    assert gap(gradient(tiny(), traces, GRPO(beta=0.0)), expected) < 1e-5
    gone = copy.deepcopy(traces)
    gone[2] = group(gone[2].steps[0].token_ids, [gone[2].steps[i].token_ids for i in (1, 3)], [0.3, 0.9])
    GRPO().credit(gone[2], "wanted")
    assert gap(gradient(tiny(), gone, GRPO(beta=0.0)), expected) < 1e-5
    undecided.advantages = np.zeros(len(undecided.token_ids), np.float32)  # the mistake: unknown as zero
    assert gap(gradient(tiny(), traces, GRPO(beta=0.0)), expected) > 1e-2


# packed log-probabilities are those of the single sequences (mistake 12), prompt and pads out of the loss (11)


@pytest.mark.parametrize("kind", ["untied", "window", "gemma"])
def test_packed_logprobs_equal_single_sequences(kind: str) -> None:
    net, traces = tiny(kind), world()
    learner = Learner(net, GRPO(beta=0.0))
    trees = pack.plan(traces, GRPO().weigh, keep_zero=True)
    batch = pack.pack(trees, torch.device("cpu"))
    with torch.no_grad():
        found = learner.logprobs(net, batch)[0]
    _, _, single = reference_step(net, traces)
    assert float((found - torch.cat(single)).abs().max()) < 1e-5


def test_positions_that_count_through_the_pack_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Running(learning.Packed):  # type: ignore[name-defined, misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.positions_T = torch.arange(len(self.positions_T))

    monkeypatch.setattr(learning, "Packed", Running)
    with pytest.raises(AssertionError):
        test_packed_logprobs_equal_single_sequences("llama")


def test_end_of_sequence_is_in_the_loss_and_prompts_are_not() -> None:
    traces = world()
    batch = pack.pack(pack.plan(traces, GRPO().weigh, keep_zero=True), torch.device("cpu"))
    written = [s.token_ids.tolist() for t in traces for s in t.steps[1:] if s.advantages is not None]
    assert batch.target_N.tolist() == [token for tokens in written for token in tokens]
    assert batch.target_N.tolist().count(2) == len(written)
    assert float(batch.weight_N.sum()) == pytest.approx(1.0)


def test_pad_equal_to_eos_changes_nothing() -> None:
    padded = tiny()
    padded.config = replace(padded.config, pad=2)
    assert gap(gradient(padded, world(), GRPO(beta=0.0)), gradient(tiny(), world(), GRPO(beta=0.0))) == 0


def test_without_the_end_of_sequence_the_gradient_is_another() -> None:
    cut = world()
    for trace in cut:
        for step in trace.steps[1:]:
            if step.advantages is not None and len(step.token_ids) > 1:
                step.token_ids, step.advantages = step.token_ids[:-1], step.advantages[:-1]
                step.logprobs = step.logprobs[:-1]
    full = gradient(tiny(), world(), GRPO(beta=0.0))
    assert gap(gradient(tiny(), cut, GRPO(beta=0.0)), full) > 1e-2


def test_no_dropout_anywhere() -> None:
    net = tiny()
    assert not [m for m in net.modules() if "dropout" in type(m).__name__.lower()]
    traces = world()
    one, two = (gradient(net.train(mode), traces, GRPO(beta=0.0)) for mode in (True, False))
    assert gap(one, two) == 0


def test_log_probabilities_as_sampled_are_compared() -> None:
    """The gap between sampler and learner is measured on tokens that were sampled, and on no others."""
    net, traces = tiny(), world()
    _, _, single = reference_step(net, traces)
    credited = [s for t in traces for s in t.steps if s.advantages is not None]
    for step, true in zip(credited, single, strict=True):
        step.logprobs = true.numpy().astype(np.float32)
    credited[0].logprobs = credited[0].logprobs - np.float32([0.5, 0, 0])
    credited[-1].logprobs = None
    metrics = Learner(net, GRPO(beta=0.0)).step(traces)
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["num_trained_tokens"] == sum(len(s.token_ids) for s in credited if s.advantages.any())


# KL (mistake 8)


@pytest.fixture
def kl_pulls_back() -> Check:
    """Only beta, no advantages: the gradient lives, is the formula's, and a step lowers the KL."""

    def check() -> None:
        net = tiny()
        learner = Learner(net, GRPO(beta=1.0), AdamW(lr=1e-3))
        apart(net)
        traces = world()
        for trace in traces:
            for step in trace.steps[1:]:
                step.advantages = np.zeros(len(step.token_ids), np.float32)
        _, grads, _ = reference_step(net, traces, beta=1.0, reference=learner.reference)
        found = learner.gradient(traces)
        assert max(float(g.norm()) for g in found.values()) > 0
        assert gap(found, grads) < 1e-5
        kept = [learner.step(traces)["kl"] for _ in range(4)]
        assert kept[0] > kept[1] > kept[2] > kept[3] >= 0

    return check


def test_kl_in_the_loss_moves_towards_the_reference(kl_pulls_back: Check) -> None:
    kl_pulls_back()


@pytest.mark.parametrize(
    "mistake", [lambda a, b: losses.k3(a.detach(), b) + 0 * a, lambda a, b: -losses.k3(a, b), losses.k1]
)
def test_a_kl_without_gradient_or_with_another_sign_is_caught(
    mistake: Callable[[Tensor, Tensor], Tensor], kl_pulls_back: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        clipped, sequence_mean, token_mean = losses.clipped, losses.sequence_mean, losses.token_mean
        k3 = staticmethod(mistake)

    monkeypatch.setattr(objective, "losses", Wrong)
    with pytest.raises(AssertionError):
        kl_pulls_back()


def test_all_three_kls_are_recorded_and_the_reference_stays() -> None:
    net = tiny()
    learner = Learner(net, GRPO(beta=0.04), AdamW(lr=1e-2))
    before = copy.deepcopy(learner.reference.state_dict())
    for _ in range(2):
        metrics = learner.step(world())
    assert {"kl", "kl/k1", "kl/k2"} <= metrics.keys() and metrics["kl"] > 0
    assert all(torch.equal(before[n], p) for n, p in learner.reference.state_dict().items())
    assert Learner(tiny(), GRPO(beta=0.0)).reference is None, "no second model where none is needed"


# old = current, once (mistake 6)


@pytest.fixture
def three_passes() -> Check:
    """Passes over the same samples, by hand: each ratio is against the first pass's log-probabilities."""

    def check() -> None:
        net, traces, settings = tiny(), world(), AdamW(lr=0.02, max_norm=float("inf"))
        Learner(net, GRPO(beta=0.0), settings, passes=3).step(traces)

        manual = tiny()
        adam = torch.optim.AdamW(manual.parameters(), lr=0.02, weight_decay=0.0)
        olds: list[Tensor] | None = None
        for _ in range(3):
            _, grads, seen = reference_step(manual, traces, olds=olds)
            olds = olds or seen
            for name, p in manual.named_parameters():
                p.grad = grads[name].float()
            adam.step()
        moved, off = (
            max(float((p - q).detach().norm()) for p, q in zip(manual.parameters(), other.parameters(), strict=True))
            for other in (tiny(), net)
        )
        assert off < 1e-3 * moved

    return check


def test_old_is_current_on_the_first_pass_and_stays(three_passes: Check) -> None:
    three_passes()


def test_an_old_that_follows_is_caught(three_passes: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Learner._forward
    monkeypatch.setattr(Learner, "_forward", lambda self, batch, old, tally: real(self, batch, None, tally))
    with pytest.raises(AssertionError):
        three_passes()


def test_the_ratio_moves_in_later_passes() -> None:
    ratios = []
    real = losses.clipped

    def spy(new: Tensor, old: Tensor, *rest: Any) -> Tensor:
        ratios.append(float((new - old).abs().max().detach()))
        return real(new, old, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "clipped", spy)
        metrics = Learner(tiny(), GRPO(beta=0.0), AdamW(lr=0.05), passes=3, micro_tokens=20).step(world())
    per_pass = len(ratios) // 3
    assert per_pass > 1 and not any(ratios[:per_pass]), "exactly 1 in every micro-batch of the first pass"
    assert min(ratios[per_pass:]) > 1e-3
    assert metrics["clip_ratio/region_mean"] > 0


# steps that must not be taken (mistake 17), layers that must not move


@dataclass
class Sometimes:
    """GRPO whose loss breaks on demand."""

    broken: str = ""
    beta: float = 0.0
    clip: float = 0.2

    def credit(self, trace: Trace, scorer: str) -> None: ...

    def weigh(self, lengths: Sequence[int]) -> list[np.ndarray]:
        return losses.sequence_mean(lengths)

    def loss(self, new: Tensor, old: Tensor, reference: Tensor | None, advantages: Tensor) -> Tensor:
        right = GRPO(beta=0.0).loss(new, old, reference, advantages)
        if self.broken == "loss":
            return right * torch.nan
        if self.broken == "gradient":  # a finite value whose slope is infinite
            return right + (new - new.detach()).abs().sqrt()
        return right


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_and_recorded(broken: str) -> None:
    net, traces, rule = tiny(), world(), Sometimes()
    learner = Learner(net, rule, AdamW(lr=1e-2))
    learner.step(traces)
    rule.broken = broken
    before = copy.deepcopy(net.state_dict())
    state = {n: t.clone() for n, t in learner.masters.state().items()}
    for count in (1.0, 2.0):
        metrics = learner.step(traces)
        assert metrics["skipped_steps"] == count
        assert not np.isfinite(metrics["loss"] if broken == "loss" else metrics["grad_norm"])
    assert all(torch.equal(before[n], p) for n, p in net.state_dict().items())
    assert all(torch.equal(state[n], t) for n, t in learner.masters.state().items()), "nor Adam's moments"

    rule.broken = ""
    clean = Learner(tiny(), Sometimes(), AdamW(lr=1e-2))
    clean.step(traces), clean.step(traces)
    assert "skipped_steps" not in learner.step(traces)
    for p, q in zip(net.parameters(), clean.net.parameters(), strict=True):
        assert torch.equal(p, q), "nothing of the skipped gradients is left"

    rule.broken = broken
    learner.step(traces), learner.step(traces)
    with pytest.raises(Diverged, match="three steps in a row"):
        learner.step(traces)


def test_nothing_to_learn_takes_no_step() -> None:
    net = tiny()
    before = copy.deepcopy(net.state_dict())
    traces = [group([4, 5], [[7, 2], [8, 2]], [1.0, 1.0])]
    GRPO().credit(traces[0], "wanted")
    learner = Learner(net, GRPO(beta=0.0), AdamW(lr=1.0))
    assert learner.step(traces) == {"loss": 0.0, "grad_norm": 0.0, "lr": 1.0}
    assert learner.masters.steps == 0
    assert all(torch.equal(before[n], p) for n, p in net.state_dict().items())


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_frozen_layers_neither_change_nor_get_a_gradient(kind: str) -> None:
    net = tiny(kind)
    before = copy.deepcopy(net.state_dict())
    learner = Learner(net, GRPO(beta=0.0), AdamW(lr=0.1), frozen_layers=1)
    traces = world()
    found = learner.gradient(traces)
    _, expected, _ = reference_step(net, traces)
    assert all(n.startswith(("layers.1.", "norm.")) for n in found)
    assert gap(found, {n: expected[n] for n in found}) < 1e-5, "what is left learns as it would have"
    learner.step(traces)
    changed = {n for n, p in net.state_dict().items() if not torch.equal(before[n], p)}
    assert changed == set(found)
    Learner(net, GRPO(beta=0.0))
    assert all(p.requires_grad for p in net.parameters()), "another learner thaws them"


@pytest.mark.parametrize("layers", [-1, 2, 5])
def test_at_least_one_layer_learns(layers: int) -> None:
    with pytest.raises(UsageError, match="frozen_layers"):
        Learner(tiny(), GRPO(), frozen_layers=layers)


def test_watch_is_told_shares_up_to_one() -> None:
    shares: list[float] = []
    Learner(tiny(), GRPO(beta=0.0), micro_tokens=20, passes=2).step(world(), shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(set(shares)) == len(shares) > 2
