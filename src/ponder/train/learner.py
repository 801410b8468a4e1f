"""The learner: credited traces in, better weights out. It does not know which algorithm runs.

Shapes: N trained tokens of a micro-batch, E width.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ponder import settings
from ponder.errors import Interrupted, PonderError, UsageError
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.nets.tree_attention import make_tree_attention
from ponder.train.chunked_lm_head import divergence, token_logprobs
from ponder.train.distributed import SINGLE_PROCESS, DataParallelGroup
from ponder.train.finite_checks import Diverged
from ponder.train.metrics import MetricSums, average_metrics
from ponder.train.objective import Objective, Tokens
from ponder.train.optimizer import AdamW, MasterWeights
from ponder.train.pack import PackedBatch, TraceChains, chains, group_by_trace, pack, plan, split_microbatches
from ponder.types import Step, Trace

T = TypeVar("T")
_MIN_TEMPERATURE = 1e-30  # the least number to divide by in float32


class OutOfMemory(PonderError):
    """Even a single sequence does not fit."""


class Learner:
    """`epochs_per_batch` over the samples of a step, each in `minibatches` optimiser steps.

    `reference` is the model that KL terms, preferences and distillation compare with; by default the network as it is
    now, at no cost where it can be had for none. `max_tokens_per_microbatch` are computed at a time (0: as many as suit the device)
    and `gradient_checkpointing` keeps no activations inside layers: both change the memory it takes, not the gradient.
    """

    def __init__(
        self,
        net: Decoder,
        objective: Objective,
        optimizer: AdamW = AdamW(),
        *,
        temperature: float = 1.0,
        max_tokens_per_microbatch: int = 0,
        epochs_per_batch: int = 1,
        minibatches: int = 1,
        frozen_layers: int = 0,
        gradient_checkpointing: bool = False,
        reference: Decoder | None = None,
        process_group: DataParallelGroup = SINGLE_PROCESS,
    ) -> None:
        settings.check_finite(objective)
        settings.check_finite(optimizer)
        if not _MIN_TEMPERATURE <= temperature <= 1 / _MIN_TEMPERATURE:
            raise UsageError(f"temperature is {temperature}; log-probabilities need one that is positive and finite")
        self.net, self.objective, self.process_group = net, objective, process_group
        freeze_layers(net, frozen_layers)
        self.master_weights = MasterWeights(net, optimizer)
        self.temperature = temperature
        self.max_tokens_per_microbatch = max_tokens_per_microbatch or (16384 if net.device.type == "cuda" else 4096)
        self.epochs_per_batch, self.minibatches = epochs_per_batch, minibatches
        self.net.gradient_checkpointing = gradient_checkpointing
        self.reference = self._make_reference(reference)
        self.consecutive_skipped_steps = 0  # optimiser steps in a row that were not finite
        self.oom_retries = 0  # times that memory ran out
        self.pending_interrupt: Interrupted | None = None  # who wanted to stop while the weights were between two steps
        self.compiled = net.device.type == "cuda"  # blocks without adapters run as fused kernels

    # What the trainer calls

    def step(
        self, traces: Sequence[Trace], on_progress: Callable[[float], None] = lambda share: None
    ) -> dict[str, float]:
        """Learn from credited traces. `on_progress` is told the share that is done and may raise Interrupted.

        Once the first of several optimiser steps is taken the rest follow, and `pending_interrupt` says who wanted to stop.
        """
        parts = [part for part in _split_evenly(traces, self.minibatches) if self._plan(part)]
        rate = self.master_weights.settings.lr_at(self.master_weights.steps)
        if not self.process_group.any(bool(parts)):  # nothing to learn from: every group had equal rewards
            return {"loss": 0.0, "grad_norm": 0.0, "lr": rate}
        credited = [s for t in traces for s in t.steps if s.advantages is not None]
        if self.reference is not None:
            self.write_reference_logprobs(traces)
        several = self.epochs_per_batch * len(parts) > 1
        if several:
            self._note_old(traces, credited)
        told, self.pending_interrupt, total = [], None, self.epochs_per_batch * len(parts)
        for turn in range(total):
            share = self._defer_interrupts(on_progress, turn, total)
            told.append(self._optimizer_step(parts[turn % len(parts)], share))
        for step in credited:
            step.notes.pop("old", None)
        return average_metrics(told) | {"lr": rate}

    def write_reference_logprobs(self, traces: Sequence[Trace]) -> None:
        """Write the reference's log-probabilities beside the policy's tokens; what is known stays."""
        if self.reference is not None and not self.objective.needs_reference_distribution:
            steps = [s for t in traces for s in t.steps if s.sampled or s.advantages is not None]
            self._note(traces, [s for s in steps if "reference" not in s.notes], "reference", self.reference)

    def gradient(self, traces: Sequence[Trace], of: Sequence[Tensor] | None = None) -> dict[str, Tensor]:
        """The gradient of a step, without taking it, of all that learns or of some parameters: for tests and checks
        before a run.
        """
        self.write_reference_logprobs(traces)
        self._backward(self._plan(traces), lambda share: None, of)
        self.process_group.all_reduce(self.master_weights.gradients_or_zeros() if self.process_group.size > 1 else [])
        grads = {n: g.clone() for n, g in self.master_weights.gradients().items()}
        self.master_weights.zero_grad()
        return grads

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is trained, by name; `counters` and these restore the learner."""
        return self.master_weights.tensors()

    def counters(self) -> dict[str, int]:
        gradient_checkpointing = int(self.net.gradient_checkpointing)
        return self.master_weights.counters() | {
            "skipped_steps": self.consecutive_skipped_steps, "oom_retries": self.oom_retries, "max_tokens_per_microbatch": self.max_tokens_per_microbatch, "gradient_checkpointing": gradient_checkpointing,
        }  # fmt: skip

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, int]) -> None:
        self.master_weights.restore(tensors, facts)
        self.consecutive_skipped_steps, self.oom_retries, self.max_tokens_per_microbatch = (
            facts[k] for k in ("skipped_steps", "oom_retries", "max_tokens_per_microbatch")
        )
        self.net.gradient_checkpointing = bool(facts["gradient_checkpointing"])

    # One optimiser step

    def _plan(self, traces: Sequence[Trace]) -> list[TraceChains]:
        return plan(traces, self.objective.weigh, self.objective.trains_zero_advantage)

    def _optimizer_step(self, traces: Sequence[Trace], on_progress: Callable[[float], None]) -> dict[str, float]:
        tally = self._backward(self._plan(traces), on_progress)
        if self.process_group.size > 1:
            self.process_group.all_reduce(self.master_weights.gradients_or_zeros())
            tally.all_reduce(self.process_group)
        norm = self.master_weights.grad_norm()
        metrics = tally.metrics() | {"grad_norm": float(norm)}
        if self.oom_retries:
            metrics |= {
                "oom_retries": float(self.oom_retries),
                "max_tokens_per_microbatch": float(self.max_tokens_per_microbatch),
            }
        return self._apply_step(metrics, norm)

    def _apply_step(self, metrics: dict[str, float], norm: Tensor) -> dict[str, float]:
        """The optimiser's step, where loss and gradient and what comes of them are finite. Three times in a row that
        they are not, training ends."""
        finite = np.isfinite(metrics["grad_norm"]) and np.isfinite(metrics["loss"])
        if finite and self.master_weights.step(norm):
            self.consecutive_skipped_steps = 0
            return metrics
        self.master_weights.zero_grad()
        self.consecutive_skipped_steps += 1
        if self.consecutive_skipped_steps >= 3:
            raise Diverged(
                "the loss, the gradient or the new weights were not finite three steps in a row: lower the learning "
                "rate, or look at the log-probabilities and advantages of the last traces in the run directory"
            )
        return metrics | {"skipped_steps": float(self.consecutive_skipped_steps)}

    def _backward(
        self, work: list[TraceChains], on_progress: Callable[[float], None], of: Sequence[Tensor] | None = None
    ) -> MetricSums:
        def once() -> MetricSums:
            tally = MetricSums()
            micro = split_microbatches(
                self.process_group.shard(work), self.max_tokens_per_microbatch, self.objective.needs_whole_trace
            )
            for i, part in enumerate(micro):
                batch = pack(part, self.net.device, self._notes(part))
                tokens = self._tokens(batch)
                loss_N, stats = self.objective.loss(tokens)
                loss = torch.where(batch.weight_N != 0, loss_N * batch.weight_N, 0.0).sum()
                loss.backward(inputs=of)
                self.master_weights.accumulate()
                tally.add(batch, loss.detach(), tokens, stats)
                on_progress((i + 1) / len(micro))
            return tally

        tally = self._retry_on_oom(once)  # without what follows: peers sum once, and weights move once
        if of is None and self.process_group.shard(work):
            self.master_weights.check_all_have_gradient()
        return tally

    def _tokens(self, batch: PackedBatch) -> Tokens:
        hidden_NE = self._hidden(self.net, batch)
        logprobs_N, entropy_N = token_logprobs(hidden_NE, self.net.lm_head.weight, batch.target_N, self.temperature)
        old_N = batch.notes.get("old")

        def reference_divergence(mix: float) -> Tensor:
            assert self.reference is not None
            with torch.no_grad(), self._without_adapters_if_reference(self.reference):
                teacher_NE = self._hidden(self.reference, batch)
            heads = self.net.lm_head.weight, self.reference.lm_head.weight
            return divergence(hidden_NE, heads[0], teacher_NE, heads[1], self.temperature, mix)

        return Tokens(
            batch.advantage_N, batch.sequence_N, batch.tree_N, logprobs_N, entropy_N,
            logprobs_N.detach() if old_N is None else old_N,
            logprobs_N.new_zeros(0), batch.notes, reference_divergence,
        )  # fmt: skip

    def _notes(self, part: Sequence[TraceChains]) -> list[str]:
        """What every trained step of a micro-batch has a note of."""
        steps = [w.trace.steps[i] for w in part for c in w.chains for i in c.steps]
        return [name for name in steps[0].notes if all(name in s.notes for s in steps)]

    def _hidden(self, net: Decoder, batch: PackedBatch) -> Tensor:
        attend = make_tree_attention(batch.lengths, batch.parents, net.config, net.device, net.dtype)
        compiled = self.compiled and not lora.has_adapter(net)
        return net(batch.ids_T, attend.positions_T, attend, compiled)[batch.source_N]

    # Notes beside tokens, without gradient

    def _note(self, traces: Sequence[Trace], steps: Sequence[Step], name: str, net: Decoder) -> None:
        wanted = {id(s) for s in steps}
        if not wanted:
            return
        work = group_by_trace((t, chain) for t in traces for chain in chains(t, lambda s: id(s) in wanted))

        def write() -> None:
            for part in split_microbatches(work, self.max_tokens_per_microbatch):
                batch = pack(part, net.device)
                with (
                    torch.no_grad(),
                    self._without_adapters_if_reference(net) if name == "reference" else nullcontext(),
                ):
                    values = self.read(net, batch).float().cpu().numpy()
                ends = np.cumsum([len(s.token_ids) for s in batch.steps])[:-1]
                for step, part_of in zip(batch.steps, np.split(values, ends), strict=True):
                    step.notes[name] = part_of.astype(np.float32)

        self._retry_on_oom(write)

    def _note_old(self, traces: Sequence[Trace], steps: Sequence[Step]) -> None:
        """Every ratio is to the weights that sampled, not to those after the first optimiser step."""
        self._note(traces, steps, "old", self.net)

    def read(self, net: Decoder, batch: PackedBatch) -> Tensor:
        """The number per token that `_note` keeps."""
        return token_logprobs(self._hidden(net, batch), net.lm_head.weight, batch.target_N, self.temperature)[0]

    def _make_reference(self, given: Decoder | None) -> Decoder | None:
        if given is not None:
            return given.requires_grad_(False)
        if self.objective.kl is None and not self.objective.needs_reference:
            return None
        if lora.has_adapter(self.net) and lora.starts_at_zero(self.net):
            return self.net  # with its adapters off
        fixed = [p for p in self.net.parameters() if not p.requires_grad]
        return copy.deepcopy(self.net, {id(p): p for p in fixed}).requires_grad_(False)  # what is frozen is shared

    def _without_adapters_if_reference(self, net: Decoder) -> Any:
        return lora.disable_adapter(net) if net is self.net else nullcontext()

    # Trouble

    def _retry_on_oom(self, work: Callable[[], T]) -> T:
        """Do the work; where memory runs out, again from its beginning in smaller pieces: the same gradient."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as why:
                reason = str(why).partition(". ")[0]
            self._shrink(reason)  # outside the handler, which holds on to the failed pass

    def _shrink(self, reason: str) -> None:
        self.master_weights.zero_grad()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.oom_retries += 1
        if self.max_tokens_per_microbatch > 64:
            self.max_tokens_per_microbatch //= 2
        elif not self.net.gradient_checkpointing:
            self.net.gradient_checkpointing = True
        else:
            raise OutOfMemory(
                f"not even one sequence fits into memory ({reason}): lower max_tokens, take a smaller model or LoRA, "
                "or keep the optimiser's states in 8 bits or on the host (AdamW states='int8' or 'cpu')"
            )

    def _defer_interrupts(self, on_progress: Callable[[float], None], turn: int, total: int) -> Callable[[float], None]:
        def tell(share: float) -> None:
            try:
                on_progress((turn + share) / total)
            except Interrupted as stop:
                if turn == 0:
                    raise
                self.pending_interrupt = stop

        return tell


def _split_evenly(traces: Sequence[Trace], count: int) -> Iterator[Sequence[Trace]]:
    """In order, into parts of as nearly equal size as can be."""
    ends = np.linspace(0, len(traces), min(count, max(1, len(traces))) + 1).astype(int)
    return (traces[a:b] for a, b in pairwise(ends))


def freeze_layers(net: Decoder, layers: int) -> None:
    """Leave the lowest layers, the embeddings and the head as they are: no gradient is computed below.

    A network with adapters is left alone: only they learn.
    """
    if not 0 <= layers < len(net.layers):
        raise UsageError(f"frozen_layers is {layers}; the model has {len(net.layers)}, of which one must learn")
    if lora.has_adapter(net):
        return
    net.requires_grad_(True)
    if layers:
        net.embed_tokens.requires_grad_(False)
        net.lm_head.requires_grad_(False)
        for block in net.layers[:layers]:
            block.requires_grad_(False)
