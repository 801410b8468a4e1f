"""When things go wrong in a step: no memory, no finite number, no time."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import mixed_groups, tiny_decoder
from float64_losses import turned
from ponder.engine.graph_capture import free_on_demand
from ponder.errors import Interrupted
from ponder.nets.decoder import Decoder
from ponder.train.finite_checks import Diverged
from ponder.train.learner import Learner, OutOfMemory
from ponder.train.objective import Stats, Tokens
from ponder.train.optimizer import AdamW
from ponder.train.pack import PackedBatch
from ponder.train.policy_gradient import GRPO, ClippedSurrogate
from ponder.train.readouts import LogprobReadout
from ponder.train.sequence_parallel import SequenceGroup
from ponder.types import Trace

PLAIN = GRPO(kl=None)


@pytest.fixture(autouse=True, scope="module")
def _frozen_heap() -> None:
    """The learner collects garbage when memory is short; what tests before this file left is not searched each time."""
    gc.collect()
    gc.freeze()


def credited(worlds: int = 1) -> list[Trace]:
    traces = [t for seed in range(worlds) for t in mixed_groups(seed)]
    PLAIN.credit(traces, "wanted", {})
    return traces


def same(net: Decoder, other: dict[str, Tensor]) -> bool:
    return all(torch.equal(p, other[n]) for n, p in net.state_dict().items())


# memory


def short_of_memory(patch: pytest.MonkeyPatch, most: int, recomputed: int | None = None) -> list[int]:
    """No batch of more than so many tokens fits; with recomputing so many. Returns the sizes that were tried."""
    real, tried = LogprobReadout.loss_inputs, []

    def tokens(self: LogprobReadout, learner: Learner, batch: PackedBatch) -> Tokens:
        tried.append(len(batch.ids_T))
        if tried[-1] > (recomputed if learner.net.gradient_checkpointing and recomputed is not None else most):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self, learner, batch)

    patch.setattr(LogprobReadout, "loss_inputs", tokens)
    return tried


class Lender:
    """Memory that another part holds and does not use."""

    def __init__(self, times: int) -> None:
        self.times = times

    def free_memory(self) -> bool:
        self.times -= 1
        return self.times >= 0


def test_oom_takes_lent_memory_before_it_halves_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    traces, lender = credited(6), Lender(1)
    expected = Learner(tiny_decoder(), PLAIN).gradient(traces)
    free_on_demand(lender)
    real, failures = LogprobReadout.loss_inputs, iter([True, False])

    def tokens(self: LogprobReadout, learner: Learner, batch: PackedBatch) -> Tokens:
        if next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self, learner, batch)

    monkeypatch.setattr(LogprobReadout, "loss_inputs", tokens)
    learner = Learner(tiny_decoder(), PLAIN)
    found = learner.gradient(traces)
    assert learner.oom_retries == 0 and learner.max_tokens_per_microbatch == 4096 and lender.times == 0
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad)


@pytest.mark.parametrize("how", ["shards", "sequences"])
def test_ranks_that_make_passes_together_take_lent_memory_before_and_never_retry(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that started again alone would exchange other weights or tokens than the ranks that went on."""
    lender, lent = Lender(2), []
    free_on_demand(lender)

    def tokens(self: LogprobReadout, learner: Learner, batch: PackedBatch) -> Tokens:
        lent.append(lender.times)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(LogprobReadout, "loss_inputs", tokens)
    learner = Learner(tiny_decoder(), PLAIN)
    if how == "shards":
        learner.sharded = True
    else:
        monkeypatch.setattr(Learner, "sequences", SequenceGroup(0, 1, (0,)))
    with pytest.raises(OutOfMemory, match="CUDA out of memory"):
        learner.gradient(credited(6))
    assert lent == [1] and lender.times == 1, "it was asked once, before the first pass"


@pytest.mark.parametrize("passes", [1, 2])
def test_oom_halves_microbatch_and_retries(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = credited(6)
    expected = Learner(tiny_decoder(), PLAIN).gradient(traces)
    smooth = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-3), epochs_per_batch=passes)
    smooth.step(traces)
    tried = short_of_memory(monkeypatch, 70)
    learner = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-3), max_tokens_per_microbatch=256, epochs_per_batch=passes)
    assert turned(learner.gradient(traces), expected) < 1e-6
    assert learner.max_tokens_per_microbatch == 64 and learner.oom_retries == 2 and max(tried) > 128
    metrics = learner.step(traces)
    assert metrics["oom_retries"] == 2 and metrics["max_tokens_per_microbatch"] == 64, "once found, the size stays"
    assert learner.master_weights.steps == passes and metrics["loss"] == pytest.approx(
        smooth.step(traces)["loss"], abs=1e-2
    )
    again = Learner(tiny_decoder(), PLAIN, max_tokens_per_microbatch=256)
    again.restore(learner.tensors(), learner.counters())
    assert (again.max_tokens_per_microbatch, again.oom_retries) == (64, 2), "in a resumed run too"


def test_oom_within_a_step_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass begins again: what was collected before is dropped, from gradient and metrics."""
    traces = credited(6)
    real, calls = LogprobReadout.loss_inputs, []
    plain = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-9), max_tokens_per_microbatch=128).step(traces)

    def tokens(self: LogprobReadout, learner: Learner, batch: PackedBatch) -> Tokens:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, learner, batch)

    monkeypatch.setattr(LogprobReadout, "loss_inputs", tokens)
    output = Learner(tiny_decoder(), PLAIN, AdamW(lr=1e-9), max_tokens_per_microbatch=128).step(traces)
    for name in ("num_trained_tokens", "loss", "grad_norm", "entropy"):
        assert output[name] == pytest.approx(plain[name], rel=1e-5, abs=1e-7), name


def test_oom_enables_checkpointing_then_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = credited()
    expected = Learner(tiny_decoder(), PLAIN).gradient(traces)
    with monkeypatch.context() as m:
        short_of_memory(m, 5, recomputed=32)
        learner = Learner(tiny_decoder(), PLAIN, max_tokens_per_microbatch=32)
        assert (
            turned(learner.gradient(traces), expected) < 1e-6
            and learner.net.gradient_checkpointing
            and learner.oom_retries == 1
        )
    short_of_memory(monkeypatch, 5)
    with pytest.raises(OutOfMemory, match=r"not even one sequence fits.*out of memory.*states='int8'"):
        Learner(tiny_decoder(), PLAIN).step(traces)
    assert all(p.grad is None for p in learner.net.parameters())


# numbers


class Sometimes(ClippedSurrogate):
    """PPO's loss, which breaks on demand."""

    broken = ""

    def loss(self, tokens: Tokens) -> tuple[Tensor, Stats]:
        right, stats = super().loss(tokens)
        if self.broken == "loss":
            return right * torch.nan, stats
        if self.broken == "gradient":  # a finite value whose slope is infinite
            return right + (tokens.logprobs_N - tokens.logprobs_N.detach()).abs().sqrt(), stats
        return right, stats


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_nonfinite_step_is_skipped_and_recorded(broken: str) -> None:
    net, traces, rule = tiny_decoder(), credited(), Sometimes()
    learner = Learner(net, rule, AdamW(lr=1e-2))
    learner.step(traces)
    rule.broken = broken
    before, moments = copy.deepcopy(net.state_dict()), {n: t.clone() for n, t in learner.tensors().items()}
    for count in (1.0, 2.0):
        metrics = learner.step(traces)
        assert metrics["skipped_steps"] == count
        assert not np.isfinite(metrics["loss"] if broken == "loss" else metrics["grad_norm"])
    assert same(net, before)
    assert all(torch.equal(moments[n], t) for n, t in learner.tensors().items()), "nor Adam's moments"

    rule.broken = ""
    clean = Learner(tiny_decoder(), Sometimes(), AdamW(lr=1e-2))
    clean.step(traces), clean.step(traces)
    assert "skipped_steps" not in learner.step(traces)
    assert same(net, clean.net.state_dict()), "nothing of the skipped gradients is left"

    rule.broken = broken
    learner.step(traces), learner.step(traces)
    with pytest.raises(Diverged, match="three steps in a row"):
        learner.step(traces)


# time


@pytest.mark.parametrize("epochs", [1, 3])
def test_interrupt_is_deferred_once_the_first_gradient_is_there(epochs: int) -> None:
    shares: list[float] = []

    def stop_at(report: int) -> Learner:
        settings = {"epochs_per_batch": epochs, "max_tokens_per_microbatch": 16}
        learner = Learner(tiny_decoder(), PLAIN, AdamW(lr=0.01), **settings)  # type: ignore[arg-type]
        shares.clear()

        def watch(share: float) -> None:
            shares.append(share)
            if len(shares) == report:
                raise Interrupted("stop")

        learner.step(credited(), watch)
        return learner

    whole = stop_at(0)
    reports = len(shares)
    last_of_first_step = reports // epochs
    assert whole.pending_interrupt is None and last_of_first_step > 1 and shares[-1] == 1.0
    with pytest.raises(Interrupted):  # while a gradient is computed there is nothing to lose
        stop_at(last_of_first_step - 1)
    for report in {last_of_first_step, reports}:
        late = stop_at(report)
        assert isinstance(late.pending_interrupt, Interrupted) and len(shares) == reports
        assert late.master_weights.steps == epochs and same(late.net, whole.net.state_dict())
