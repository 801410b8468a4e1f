"""The learner: takes credited traces and updates the weights. It does not know which algorithm runs.

Shapes: N trained tokens of a micro-batch, E width.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ponder import settings
from ponder.engine.graph_capture import free_lent_memory
from ponder.errors import Interrupted, PonderError, RunError, UsageError
from ponder.nets import fp8_linear, lora
from ponder.nets.decoder import Block, Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.gpu_share import available_gpu_memory
from ponder.nets.model_parts import freeze_other_parts
from ponder.nets.torch_compile import wait_for_compiler
from ponder.nets.tree_attention import make_tree_attention
from ponder.train import losses
from ponder.train.activation_memory import gpu_microbatch_tokens
from ponder.train.distributed import NOT_SHARDED, SINGLE_PROCESS, DataParallelGroup, ShardMesh, current_group
from ponder.train.flops import pass_flops
from ponder.train.fsdp import copy_whole_weights, drop_gathered, shard_network, sum_over_copies
from ponder.train.metrics import MetricSums, average_metrics
from ponder.train.objective import Objective, Stats, Tokens
from ponder.train.optimizer import AdamW, GuardedStep, MasterWeights
from ponder.train.pack import (
    PackedBatch,
    TraceChains,
    chains,
    drop_unread_ends,
    group_by_trace,
    pack,
    plan,
    split_microbatches,
)
from ponder.train.readouts import LogprobReadout, Readout
from ponder.train.rollout_correction import RolloutCorrection, correct_rollouts
from ponder.train.sequence_parallel import SequenceGroup, SlicedTreeAttention
from ponder.types import Step, Trace

T = TypeVar("T")


class OutOfMemory(PonderError):
    """Even a single sequence does not fit into memory."""


@dataclass(slots=True)
class Gradient:
    """A gradient by parameter name, and the micro-batches it was computed on."""

    grads: dict[str, Tensor]
    batches: list[tuple[PackedBatch, Tokens]]


@dataclass(frozen=True, slots=True)
class ImitationTerm:
    """Texts beside the samples: `coef` times their token mean of -log p is added to the loss of every optimiser step.

    With texts of the pre-training distribution this is PPO-ptx (Ouyang et al. 2022, equation 2).
    """

    coef: float
    traces: Sequence[Trace]  # each credited by `credit.assign_imitation`

    def plan(self) -> list[TraceChains]:
        return plan(self.traces, lambda lengths: self.coef * losses.token_mean(lengths), trains_zero_advantage=True)


class Learner:
    """Makes `epochs_per_batch` passes over the samples of a step, each in `minibatches` optimiser steps.

    `readout` is what is read from the network; by default log-probabilities at `temperature`. `reference` is the model
    that KL terms, preferences and distillation compare with; by default the network as it is now, shared where it can
    be. `max_tokens_per_microbatch` (0: what suits the device) and `gradient_checkpointing` change the memory that a
    step takes, not its gradient. `fp8`: the blocks' matrix products are computed in 8-bit floats, of the reference's
    passes too (nets/fp8_linear.py). `frozen_layers`, `train_parts` and `head_only`: see `freeze_layers`.

    With a `process_group` of several ranks every rank calls the same methods with the same traces. `fsdp` shards what
    learns over them, or over each `shard_size` of them, so that several copies learn the same: `net` is then a sharded
    copy, and `whole_net`, the given one, gets the new weights of each step. With `sequence_parallel`, every so many
    ranks in a row share the tokens of each micro-batch (sequence_parallel.py).
    `rollout_correction` weighs tokens that were sampled with other probabilities than the learner's.
    `residual_dropout`: of what each block adds to its input, this share is set to 0 at random while the gradient is
    computed, and only then. It is for reward models: a policy must learn with the probabilities it sampled with.
    """

    shards_one_rank = False  # wrap a network with FSDP2 where one rank has all of it: for tests and measurements

    def __init__(
        self,
        net: Decoder,
        objective: Objective,
        optimizer: AdamW = AdamW(),
        *,
        readout: Readout | None = None,
        temperature: float = 1.0,
        max_tokens_per_microbatch: int = 0,
        epochs_per_batch: int = 1,
        minibatches: int = 1,
        frozen_layers: int = 0,
        train_parts: Sequence[str] = (),
        head_only: bool = False,
        gradient_checkpointing: bool = False,
        fp8: bool = False,
        reference: Decoder | None = None,
        process_group: DataParallelGroup = SINGLE_PROCESS,
        fsdp: bool = False,
        shard_size: int = 0,
        sequence_parallel: int = 1,
        rollout_correction: RolloutCorrection | None = None,
        residual_dropout: float = 0.0,
        dropout_seed: int = 0,
    ) -> None:
        settings.check_finite(objective)
        settings.check_finite(optimizer)
        self.objective, self.process_group, self.rollout_correction = objective, process_group, rollout_correction
        self.readout = LogprobReadout(temperature) if readout is None else readout
        if fp8:
            fp8_linear.check_supported(net, net.device)
        self.fp8 = fp8
        self.residual_dropout, self.dropout_seed = residual_dropout, dropout_seed
        freeze_layers(net, frozen_layers, head_only, train_parts)
        joined = dist.is_available() and dist.is_initialized() and process_group == current_group()
        shards = ShardMesh.over(process_group, shard_size) if fsdp and joined else NOT_SHARDED
        # One rank alone would hold all rows, so there is nothing to shard: copies of a network learn as without FSDP2.
        self.sharded = shards.shard_size > 1 or (fsdp and joined and self.shards_one_rank)
        self.shards = shards if self.sharded else NOT_SHARDED
        self._sequences = SequenceGroup.of(process_group, min(sequence_parallel, process_group.size))
        self.whole_net, self.net = net, self._shard(net) if self.sharded else net
        self.master_weights = MasterWeights(self.net, optimizer, self.shards)
        self.guarded_step = GuardedStep(self.master_weights)
        self.max_tokens_per_microbatch = max_tokens_per_microbatch or _default_microbatch_tokens(net)
        self.epochs_per_batch, self.minibatches = epochs_per_batch, minibatches
        self.net.gradient_checkpointing = gradient_checkpointing
        self.reference = self._make_reference(reference)
        self.oom_retries = 0  # times that memory ran out
        self.retries_oom = True  # with smaller micro-batches; else OutOfMemory is raised
        self.pending_interrupt: Interrupted | None = None  # raised by the caller while weights were between two steps
        self.compiled = net.device.type == "cuda"  # blocks run as fused kernels
        self.imitation: ImitationTerm | None = None  # of the next steps
        self.flops = 0.0  # of all that this process computed (see flops.py); the caller may set it back

    @property
    def sequences(self) -> SequenceGroup | None:
        """The ranks with which this one shares the tokens of a micro-batch; None: it has its own."""
        return self._sequences if self.process_group.size > 1 else None

    @property
    def data_group(self) -> DataParallelGroup:
        """Among whom work is shared out: ranks that share tokens count as one."""
        group, sequences = self.process_group, self.sequences
        return (
            group
            if sequences is None
            else DataParallelGroup(group.rank // sequences.size, group.size // sequences.size)
        )

    # What a training loop calls

    def step(
        self,
        traces: Sequence[Trace],
        on_progress: Callable[[float], None] = lambda share: None,
        beside_device: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Learn from credited traces. `on_progress` gets the share that is done and may raise Interrupted.

        Once the gradient of the first optimiser step is there, this and the others are taken, and `pending_interrupt`
        holds the interrupt.
        `beside_device` is called when a GPU has all passes of the last optimiser step to compute, and the host nothing
        to do until then. The traces are as this leaves them. It is not called where nothing is learned.
        """
        parts = [work for part in _split_evenly(traces, self.minibatches) if (work := self.plan(part))]
        rate = self.master_weights.settings.lr_at(self.master_weights.steps)
        if not self.process_group.any(bool(parts)):  # no gradient: every group had equal rewards
            return {"loss": 0.0, "grad_norm": 0.0, "lr": rate}
        credited = [s for t in traces for s in t.steps if s.advantages is not None]
        if self.reference is not None:
            self.write_reference_logprobs(traces)
        rows, self.pending_interrupt, total = [], None, self.epochs_per_batch * len(parts)
        if total > 1 and self.readout.needs_old_logprobs:  # ratios are to the weights that sampled
            self.write_notes(traces, credited, "old", self.net)
        for turn in range(total):
            share = self._defer_interrupts(on_progress, turn, total)

            def launched(is_last: bool = turn == total - 1) -> None:
                if is_last:
                    for step in credited:
                        step.notes.pop("old", None)
                    beside_device()

            rows.append(self._optimizer_step(parts[turn % len(parts)], share, launched))
        return average_metrics(rows) | {"lr": rate}

    def write_reference_logprobs(self, traces: Sequence[Trace]) -> None:
        """Note the reference's log-probabilities beside the policy's tokens, unless they are there."""
        if self.reference is not None and not self.objective.needs_reference_distribution:
            steps = [s for t in traces for s in t.steps if s.sampled or s.advantages is not None]
            self.write_notes(traces, [s for s in steps if "reference" not in s.notes], "reference", self.reference)

    def gradient(self, traces: Sequence[Trace], of: Sequence[Tensor] | None = None) -> dict[str, Tensor]:
        """The gradient of a step, without taking it, of all that learns or of some parameters."""
        self.write_reference_logprobs(traces)
        self._backward(self.plan(traces), lambda share: None, of)
        self._sum_gradients()
        grads = self.master_weights.whole_gradients()
        self.master_weights.zero_grad()
        return grads

    def probe_gradient(self, traces: Sequence[Trace], of: Sequence[Tensor], **settings: Any) -> Gradient:
        """This process's gradient of some parameters with other `settings` (see `unchanged`), and the micro-batches
        that it was computed on: for checks before a run. Nothing of the learner changes."""
        batches: list[tuple[PackedBatch, Tokens]] = []
        with self.unchanged(process_group=SINGLE_PROCESS, residual_dropout=0.0, **settings):
            self.write_reference_logprobs(traces)
            self._backward(self.plan(traces), lambda share: None, of, batches)
            return Gradient({n: g.clone() for n, g in self.master_weights.gradients().items()}, batches)

    @torch.no_grad()
    def loss_inputs(self, traces: Sequence[Trace], max_tokens_per_microbatch: int) -> list[tuple[PackedBatch, Tokens]]:
        """What the loss of a step is a function of, without gradient."""
        parts = split_microbatches(self.plan(traces), max_tokens_per_microbatch, self.objective.needs_whole_trace)
        batches = [pack(part, self.net.device, self._notes(part)) for part in parts]
        return [(batch, self.readout.loss_inputs(self, batch)) for batch in batches]

    @contextmanager
    def unchanged(self, **settings: Any) -> Iterator[None]:
        """Set attributes of the learner for a while. At the end they, gradients, and all that a lack of memory changed
        are as before."""
        names = {"oom_retries", "max_tokens_per_microbatch", "flops", *settings}
        before, checkpointing = {name: getattr(self, name) for name in names}, self.net.gradient_checkpointing
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)
            self.master_weights.zero_grad()
            self.net.gradient_checkpointing = checkpointing

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is trained, by name; `counters` and these restore the learner."""
        return self.master_weights.tensors()

    def counters(self) -> dict[str, int]:
        own = {"oom_retries": self.oom_retries, "max_tokens_per_microbatch": self.max_tokens_per_microbatch}
        own["gradient_checkpointing"] = int(self.net.gradient_checkpointing)
        return self.master_weights.counters() | self.guarded_step.counters() | own

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, int]) -> None:
        if missing := self.counters().keys() - counters.keys():
            raise RunError(f"the checkpoint has no {min(missing)}: another version wrote it; start a new run")
        self.master_weights.restore(tensors, counters)
        self._publish()
        self.guarded_step.restore(counters)
        self.oom_retries, self.max_tokens_per_microbatch = (
            counters[k] for k in ("oom_retries", "max_tokens_per_microbatch")
        )
        self.net.gradient_checkpointing = bool(counters["gradient_checkpointing"])

    def copy_weights(self) -> dict[str, Tensor]:
        """Copies of the weights that learn, in float32, without the optimiser's moments."""
        return {name: w.detach().clone() for name, w in self.master_weights.weights.items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Go back to copied weights; the optimiser's moments and steps stay as they are."""
        self.master_weights.load_weights(weights)
        self._publish()

    def zero_grad(self) -> None:
        self.master_weights.zero_grad()

    # One optimiser step

    def plan(self, traces: Sequence[Trace]) -> list[TraceChains]:
        return plan(traces, self.objective.weigh, self.objective.trains_zero_advantage)

    def _optimizer_step(
        self, work: list[TraceChains], on_progress: Callable[[float], None], launched: Callable[[], None]
    ) -> dict[str, float]:
        sums = self._backward(work, on_progress)
        if self.process_group.size > 1:
            self._sum_gradients()
            sums.all_reduce(self.process_group)
        norm = self.master_weights.own_grad_norm()  # a GPU is told before the host waits for it
        launched()
        metrics = sums.metrics() | {"grad_norm": self.master_weights.grad_norm(norm)}
        if self.oom_retries:
            metrics |= {
                "oom_retries": float(self.oom_retries),
                "max_tokens_per_microbatch": float(self.max_tokens_per_microbatch),
            }
        metrics = self.guarded_step.take(metrics)
        self._publish()
        return metrics

    def _sum_gradients(self) -> None:
        """Sum the gradients over the ranks. Those of shards are sums over the ranks of their copy already."""
        if self.sharded:
            sum_over_copies(list(self.master_weights.gradients().values()), self.shards, self.net.device)
        elif self.process_group.size > 1:
            self.process_group.all_reduce(self.master_weights.gradients_or_zeros())

    def _publish(self) -> None:
        """Give the whole network the weights of the shards."""
        if self.sharded:
            drop_gathered(self.net)
            copy_whole_weights(self.master_weights.params, self.whole_net, self.shards)

    def _backward(
        self,
        work: list[TraceChains],
        on_progress: Callable[[float], None],
        of: Sequence[Tensor] | None = None,
        batches: list[tuple[PackedBatch, Tokens]] | None = None,
    ) -> MetricSums:
        """Sum the gradient of all micro-batches, which are put into `batches`. Out of memory: it starts again."""

        sequences = self.sequences
        parts, first = (1, True) if sequences is None else (sequences.size, sequences.rank == 0)  # of one loss

        def once() -> MetricSums:
            sums = MetricSums()
            if batches is not None:
                batches.clear()
            micro = self._microbatches(work, self.objective.needs_whole_trace)
            for i, (part, counts) in enumerate(micro):
                batch = pack(part, self.net.device, self._notes(part))
                weight_N = batch.weight_N if counts else torch.zeros_like(batch.weight_N)
                tokens, more = self._corrected(self.readout.loss_inputs(self, batch), batch)
                loss_N, stats = self.objective.loss(tokens)
                loss = torch.where(weight_N != 0, loss_N * weight_N, 0.0).sum()
                (loss / parts).backward(inputs=of)
                self.master_weights.accumulate()
                if counts and first:
                    sums.add(batch, loss.detach(), tokens, stats | more)
                if batches is not None:
                    batches.append((batch, tokens))
                on_progress((i + 1) / len(micro))
            if self.imitation is not None and batches is None:
                self._imitation_backward(self.imitation.plan(), sums, of)
            return sums

        with self._dropout(), self.master_weights.accumulating():
            sums = self._retry_on_oom(once)  # what follows is done once: the sum over processes and the step
        if of is None and self.data_group.shard(work):
            self.master_weights.check_all_have_gradient()
        return sums

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """Dropout for a while. What is dropped is a function of the seed, the optimiser step and the rank."""
        if not self.residual_dropout:
            yield
            return
        device, blocks = self.net.device, [block for block in self.net.modules() if isinstance(block, Block)]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            entropy = self.dropout_seed, self.master_weights.steps, self.process_group.rank
            torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
            for block in blocks:
                block.residual_dropout = self.residual_dropout
            try:
                yield
            finally:
                for block in blocks:
                    block.residual_dropout = 0.0

    def _corrected(self, tokens: Tokens, batch: PackedBatch) -> tuple[Tokens, Stats]:
        if self.rollout_correction is None:
            return tokens, {}
        return correct_rollouts(self.rollout_correction, tokens, batch.sampled_N)

    def _imitation_backward(self, work: list[TraceChains], sums: MetricSums, of: Sequence[Tensor] | None) -> None:
        """Add the gradient of the imitation term."""
        for part, counts in self._microbatches(work):
            batch = pack(part, self.net.device)
            logprobs_N = self.readout.loss_inputs(self, batch).logprobs_N
            loss = (losses.reinforce(logprobs_N, batch.advantage_N) * batch.weight_N * float(counts)).sum()
            share = loss if self.sequences is None else loss / self.sequences.size
            share.backward(inputs=of)
            self.master_weights.accumulate()
            sums.add_term("pretraining", share.detach())

    def _microbatches(
        self, work: list[TraceChains], keep_traces_whole: bool = False
    ) -> list[tuple[list[TraceChains], bool]]:
        """This rank's micro-batches, and whether each counts. A pass over shards gathers them from all ranks, so all
        make equally many: a rank with fewer repeats a small piece with weight 0."""
        own = split_microbatches(self.data_group.shard(work), self.max_tokens_per_microbatch, keep_traces_whole)
        micro = [(part, True) for part in own]
        if self.sharded and work:
            missing = int(self.process_group.max_of(len(own))) - len(own)
            smallest = min(work, key=TraceChains.tokens)
            chain = smallest.chains if keep_traces_whole else smallest.chains[:1]
            micro += [([TraceChains(smallest.trace, chain)], False)] * missing
        return micro

    def _notes(self, part: Sequence[TraceChains]) -> list[str]:
        """The notes that every trained step of a micro-batch has."""
        steps = [w.trace.steps[i] for w in part for c in w.chains for i in c.steps]
        return [name for name in steps[0].notes if all(name in s.notes for s in steps)]

    def hidden_states(self, net: Decoder, batch: PackedBatch) -> Tensor:
        """[N, E]: the last hidden states at `batch.source_N`, which the head reads next."""
        hidden_NE, rows = self.own_hidden_states(net, batch)
        return self.all_rows(hidden_NE, rows, batch)

    def own_hidden_states(self, net: Decoder, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """Those that this rank computes, and which of the N they are; None: all."""
        wait_for_compiler()  # plain passes import it too, with gradient checkpointing or marked sizes
        sequences = self.sequences
        compiled = self.compiled and lora.can_compile(net)
        whole = batch
        if net.device.type == "cpu":  # elsewhere the number of tokens is a multiple of a block
            batch = drop_unread_ends(batch)
        local = net.local_ids(batch.ids_T)
        if sequences is None:
            attend = make_tree_attention(batch.lengths, batch.parents, net.config, net.device, net.dtype)
            positions = net.tree_positions(local, attend.positions_T, batch.lengths, batch.parents)
            hidden_NE = net(local, positions, attend, compiled, self.fp8)[batch.source_N]
            self.count_flops(net, whole)  # while a GPU computes
            return hidden_NE, None
        sliced = SlicedTreeAttention(batch.lengths, batch.parents, sequences, net.device)
        own = sliced.slice
        positions = net.tree_positions(local, sliced.positions_T, batch.lengths, batch.parents)[..., own]
        hidden_tE = net(local[own], positions, sliced, compiled, self.fp8)
        self.count_flops(net, whole)
        rows = ((batch.source_N >= own.start) & (batch.source_N < own.stop)).nonzero()[:, 0]
        return hidden_tE[batch.source_N[rows] - own.start], rows

    def count_flops(self, net: Decoder, batch: PackedBatch) -> None:
        """Of a pass over a micro-batch."""
        real = slice(-1 if batch.has_padding else None)
        readings, backward = len(batch.source_N), torch.is_grad_enabled()
        flops = pass_flops(net, batch.lengths[real], batch.parents[real], readings, backward)
        self.flops += flops if self.sequences is None else flops / self.sequences.size

    def all_rows(self, values: Tensor, rows: Tensor | None, batch: PackedBatch) -> Tensor:
        """What was read of all trained tokens, from what this rank has of it."""
        if rows is None or self.sequences is None:
            return values
        return self.sequences.gather_rows(values, rows, len(batch.source_N))

    # Notes beside tokens, without gradient

    def write_notes(self, traces: Sequence[Trace], steps: Sequence[Step], name: str, net: Decoder) -> None:
        """Note what the readout reads of each token of these steps beside it."""
        step_ids = {id(s) for s in steps}
        if not step_ids:
            return
        work = group_by_trace((t, chain) for t in traces for chain in chains(t, lambda s: id(s) in step_ids))

        for step in steps:
            step.notes.pop(name, None)

        def write() -> None:
            for part, counts in self._microbatches(work):
                batch = pack(part, net.device)
                with (
                    torch.no_grad(),
                    self.without_adapters_if_reference(net) if name == "reference" else nullcontext(),
                ):
                    values = self.read(net, batch).float().cpu().numpy()
                ends = np.cumsum([len(s.token_ids) for s in batch.steps])[:-1]
                for step, part_of in zip(batch.steps, np.split(values, ends), strict=True):
                    if counts and (self.sequences is None or self.sequences.rank == 0):
                        step.notes[name] = part_of.astype(np.float32)
            drop_gathered(net)

        self._retry_on_oom(write)
        self._share_notes([w.trace.steps[i] for w in work for c in w.chains for i in c.steps], name)

    def _share_notes(self, steps: Sequence[Step], name: str) -> None:
        """Give every rank the notes that each wrote beside its share of these steps."""
        if self.process_group.size == 1:
            return
        ends = np.cumsum([len(s.token_ids) for s in steps])
        values = torch.zeros(int(ends[-1]))
        for step, end in zip(steps, ends, strict=True):
            if name in step.notes:
                values[int(end) - len(step.token_ids) : int(end)] = torch.from_numpy(step.notes[name])
        self.process_group.all_reduce([values])
        for step, part_of in zip(steps, np.split(values.numpy(), ends[:-1]), strict=True):
            step.notes[name] = part_of.copy()

    def read(self, net: Decoder, batch: PackedBatch) -> Tensor:
        return self.readout.read(self, net, batch)

    def _make_reference(self, reference: Decoder | None) -> Decoder | None:
        if reference is not None:
            return reference.requires_grad_(False)
        if self.objective.kl is None and not self.objective.needs_reference:
            return None
        if lora.trains_only_adapter(self.net) and lora.starts_at_zero(self.net):
            return self.net  # with its adapters off
        fixed = [p for p in self.whole_net.parameters() if not p.requires_grad]
        frozen = copy.deepcopy(self.whole_net, {id(p): p for p in fixed}).requires_grad_(False)  # and shared with it
        return self._shard(frozen) if self.sharded else frozen

    def _shard(self, net: Decoder) -> Decoder:
        return shard_network(net, self.shards)

    def without_adapters_if_reference(self, net: Decoder) -> Any:
        return lora.disable_adapter(net) if net is self.net else nullcontext()

    # Out of memory, interrupts

    def _retry_on_oom(self, work: Callable[[], T]) -> T:
        """Do the work. Where memory runs out, start it again with lent memory, then with smaller micro-batches: the
        gradient is the same. Ranks that make their passes together cannot: memory that is lent is taken before."""
        flops, together = self.flops, self._passes_together
        if together:
            free_lent_memory()
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as why:
                reason = str(why).partition(". ")[0]
            self.flops = flops
            if not together and free_lent_memory():  # outside the handler, which holds on to the failed pass
                self._drop_pass()
                continue
            if together or not self.retries_oom:
                raise OutOfMemory(reason)
            self._shrink(reason)

    @property
    def _passes_together(self) -> bool:
        """Whether ranks exchange weights or tokens inside of a pass, so that all must make the same passes."""
        return self.sharded or self.sequences is not None

    def _drop_pass(self) -> None:
        self.master_weights.zero_grad()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _shrink(self, reason: str) -> None:
        self._drop_pass()
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
                if turn == 0 and share < 1:
                    raise
                self.pending_interrupt = stop

        return tell


def _default_microbatch_tokens(net: Decoder) -> int:
    if net.device.type != "cuda":
        return 4096
    return gpu_microbatch_tokens(net.config, net.dtype.itemsize, available_gpu_memory(net.device)[1])


def _split_evenly(traces: Sequence[Trace], count: int) -> Iterator[Sequence[Trace]]:
    """Split in order into parts of nearly equal size."""
    ends = np.linspace(0, len(traces), min(count, max(1, len(traces))) + 1).astype(int)
    return (traces[a:b] for a, b in pairwise(ends))


def freeze_layers(net: Decoder, layers: int, head_only: bool = False, parts: Sequence[str] = ()) -> None:
    """Freeze the lowest layers, the embeddings and the LM head, so that no gradient is computed below; `head_only`
    freezes all but a value or reward model's head. Of a network with adapters only they and such a head learn. `parts`:
    of a vision-language model only these learn (`model_parts`).
    """
    if not 0 <= layers < len(net.layers):
        raise UsageError(f"frozen_layers is {layers}; the model has {len(net.layers)}, of which one must learn")
    if not lora.has_adapter(net):
        net.requires_grad_(not head_only)
        if layers:
            net.embed_tokens.requires_grad_(False)
            net.lm_head.requires_grad_(False)
            for block in net.layers[:layers]:
                block.requires_grad_(False)
    if parts:
        freeze_other_parts(net, parts)
    if isinstance(net, DecoderWithHead):
        net.score.requires_grad_(True)
