"""The state of a training run between its steps, and how a run resumes.

A step is atomic: once it is recorded, `TrainingState` is replaced as a whole. So a run that was killed at any moment
resumes from a checkpoint and ends as if it had never stopped.
"""

from __future__ import annotations

import warnings
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from ponder.errors import Interrupted
from ponder.measure.diagnostics.training_health import diagnose
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.tokenizer import Tokenizer
from ponder.nets import hf, lora
from ponder.nets.decoder import Decoder
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.decoder_with_reference import DecoderWithReference
from ponder.nets.lora import LoRA
from ponder.pipelines.job.record_tokens import record_tokens
from ponder.pipelines.preflight.checks import check_gradient, raise_if_failed
from ponder.pipelines.preflight.passed_checks import gradient_facts, has_passed, record_passed
from ponder.pipelines.training.agreed_stop import AgreedStop
from ponder.pipelines.training.held_out_accuracy import ACCURACY as HELD_OUT_ACCURACY
from ponder.pipelines.training.lora_base import lora_base
from ponder.protocols import Progress
from ponder.runs import Run, read_metrics
from ponder.train import checkpoint
from ponder.train.distributed import ShardMesh, current_group
from ponder.train.finite_checks import Diverged, check_tensors_finite
from ponder.train.host_buffers import HostBuffers, HostCopy
from ponder.train.learner import Learner
from ponder.train.pack import plan
from ponder.types import Trace


class TrainingJob(Protocol):
    """The settings of a training job that a session reads."""

    @property
    def steps(self) -> int: ...
    @property
    def save_every(self) -> int: ...
    @property
    def keep_checkpoints(self) -> int: ...


@dataclass(slots=True)
class TrainingState:
    """The progress of a run, as plain data. Random numbers are a function of the step, so no generator is saved."""

    step: int = 0  # steps done
    cursor: int = 0  # problems sampled so far
    num_tokens: float = 0.0  # tokens trained on so far
    flops: float | None = 0.0  # of sampling and learning so far; None: an earlier version counted none
    objective_state: dict[str, float] = field(default_factory=dict)
    curriculum_state: dict[str, Any] = field(default_factory=dict)


class Trainable(Protocol):
    """What a session saves, restores and interrupts: a `Learner`, or another that trains a network."""

    net: Decoder
    whole_net: Decoder  # the same where it is not sharded
    sharded: bool
    shards: ShardMesh
    pending_interrupt: Interrupted | None
    flops: float

    def tensors(self) -> dict[str, Tensor]: ...
    def counters(self) -> dict[str, int]: ...
    def restore(self, tensors: dict[str, Tensor], counters: dict[str, int]) -> None: ...
    def zero_grad(self) -> None: ...


class TrainingSession:
    """A context manager around a training loop: restores, records, saves, and saves again when interrupted.

    `learners` are by name; the first is the policy's. `loading`: of `checkpoint.start_loading`, if that was called. Of
    several ranks, all of which run the same loop, rank 0 records and saves; `watch` then keeps interrupts until all
    ranks are between two steps.
    """

    def __init__(
        self,
        run: Run,
        job: TrainingJob,
        watch: Progress,
        policy: PonderPolicy,
        learners: Mapping[str, Trainable],
        loading: Future[checkpoint.Checkpoint | None] | None = None,
    ) -> None:
        self.run, self.job, self.policy, self.learners = run, job, policy, learners
        self._loading = loading
        self.group = current_group()
        self._stop = AgreedStop(watch, self.group) if self.group.size > 1 else None
        self.watch: Progress = self._stop or watch
        on_gpu = policy.net.device.type != "cpu"  # a CPU has neither time nor memory to spare
        self.saver = checkpoint.CheckpointWriter(run, keep=job.keep_checkpoints, background=on_gpu)
        self._host_buffers: dict[str, HostBuffers] = {}  # of the models that are saved
        self._copies: list[HostCopy] = []  # of them, that may still be under way
        self.state = TrainingState()
        self.rows: list[dict[str, float]] = []
        self._base = lora_base(job, policy.net)  # its weights are not saved again
        self._stack = ExitStack()
        self._gradient_checked: list[Learner] = []

    def __enter__(self) -> TrainingSession:
        if self.group.is_main:
            self._stack.enter_context(self.saver)
        latest = checkpoint.load_latest(self.run, self.group, self._loading)
        self._loading = None  # its tensors are large
        record_counts: dict[str, int] = {}
        if latest is not None:
            for name, learner in self.learners.items():
                learner.restore(_tensors_of(latest.tensors, name), latest.state["learners"][name])
            if self.policy.net.device.type == "cpu":
                torch.set_num_threads(latest.state["threads"])  # another order of summation would give other bits
            self.state = TrainingState(**{"flops": None} | latest.state["state"])
            record_counts = latest.state.get("records", {})  # older checkpoints have no counts
        mismatch = self.run.verify_records(self.state.step, record_counts)
        if mismatch:
            warnings.warn(f"{mismatch}: what is cut off comes again", stacklevel=2)
        self.run.mark_resumed(
            self.state.step, "; ".join(filter(None, (latest.fallback_reason if latest else "", mismatch)))
        )
        if self.group.is_main:
            self.rows = read_metrics(self.run.folder)  # for `diagnose`
            record_tokens(self.run, self.policy)
            if self._sharded is None:
                self.saver.reserve(self._learner_tensors())
        self.policy.version = self.state.step
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, tb)

    def remaining_steps(self) -> Iterator[int]:
        return iter(range(self.state.step, self.job.steps))

    @contextmanager
    def step(self) -> Iterator[TrainingState]:
        """One step: yields a copy of the state to change, which `record` puts in place of the old one."""
        for learner in self.learners.values():
            learner.flops = 0.0
        try:
            if self._stop is not None:
                self._stop.raise_if_any()
            yield replace(
                self.state, objective_state=dict(self.state.objective_state)
            )  # a history is replaced as a whole
        except (Interrupted, BaseExceptionGroup, CancelledError) as stop:
            if isinstance(stop, BaseExceptionGroup) and not stop.subgroup(Interrupted):
                raise
            for learner in self.learners.values():
                learner.zero_grad()
            self.save(None)
            so_far = f"stopped after {self.state.step} of {self.job.steps} steps"
            raise Interrupted(f"{so_far}; the same command goes on from there") from None

    def learn(
        self,
        learner: Learner,
        traces: Sequence[Trace],
        watch: Callable[[float], None],
        beside_device: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """A learner's step. If it diverges, the traces are written for inspection. `beside_device`: see `Learner.step`.
        Before the first step with compiled
        blocks, check that their gradient is that of the plain blocks: of the shortest traces, and where it differs, of
        the whole step.
        """
        self.wait_for_copies()
        if learner.compiled and learner not in self._gradient_checked and (few := _shortest(learner, traces)):
            self._gradient_checked.append(learner)
            if getattr(self.job, "preflight", True):
                self._check_gradient(learner, few, traces)
        try:
            return learner.step(traces, watch, beside_device)
        except Diverged:
            self.run.write_traces(self.state.step, traces)
            raise

    def _check_gradient(self, learner: Learner, few: Sequence[Trace], traces: Sequence[Trace]) -> None:
        """Compare the compiled gradient with the plain one, unless this run has passed that before it was resumed."""
        name = next(name for name, own in self.learners.items() if own is learner)
        facts = gradient_facts(learner)
        if self.state.step and self.group.size == 1 and has_passed(self.run.folder, name, facts):
            return
        check = check_gradient(learner, few)
        differs = check.passed is False
        if learner.sharded:  # each rank compares its own rows, and all must make the same passes
            differs = self.group.any(differs)
        if differs:  # the gradients of few answers may cancel, and what is left is rounding
            check = check_gradient(learner, traces)
        raise_if_failed([check])
        if check.passed and self.group.is_main:
            record_passed(self.run.folder, name, facts)

    def record(
        self, state: TrainingState, metrics: Mapping[str, float], traces: Sequence[Trace], sampling_flops: float = 0.0
    ) -> None:
        """Record a finished step, and save a checkpoint if it is due. The metric `flops` is of all steps so far: of
        sampling, and of what the learners computed."""
        at = self.state.step
        state.step = at + 1
        if state.flops is not None:
            state.flops += sampling_flops + self.group.sum_of(sum(lr.flops for lr in self.learners.values()))
            metrics = {**metrics, "flops": state.flops}
        self.rows.append(dict(metrics))
        self.run.write_traces(at, traces)
        self.run.write_metrics(at, metrics, [f.text for f in diagnose(self.rows)])
        self.state, self.policy.version = state, state.step
        self.watch.step(state.step, self.job.steps, metrics, traces)
        if state.step % self.job.save_every == 0 or state.step == self.job.steps:
            self.watch.phase("save")
            self.save(metrics.get(HELD_OUT_ACCURACY if getattr(self.job, "eval_every", 0) else "reward"))
        for learner in self.learners.values():
            if learner.pending_interrupt is not None:
                raise learner.pending_interrupt

    def save(self, score: float | None) -> None:
        sharded = self._sharded
        if not self.group.is_main and sharded is None:
            return
        tensors = self._learner_tensors()
        if sharded is None:
            check_tensors_finite(tensors, "the optimiser")  # before the model, whose weights derive from these
        state_json = {
            "state": asdict(self.state),
            "learners": {name: learner.counters() for name, learner in self.learners.items()},
            "records": self.run.record_counts(self.state.step),
            "threads": torch.get_num_threads(),
            "dtype": str(self.policy.net.dtype).removeprefix("torch."),
        }
        self.saver.wait()  # it reads the buffers that are written next
        folders = self._model_writers() if self.group.is_main else {}
        if sharded is not None:
            self.saver.save_shards(self.state.step, tensors, state_json, folders, score, sharded)
        else:
            self.saver.save(self.state.step, tensors, state_json, folders, score)
            if not all(copy.is_copy for copy in self._copies):
                self.saver.wait()  # a model's weights that no copy was made of

    @property
    def _sharded(self) -> ShardMesh | None:
        """The ranks among which a learner's network is sharded, if one is."""
        return next((learner.shards for learner in self.learners.values() if learner.sharded), None)

    def _learner_tensors(self) -> dict[str, Tensor]:
        return {f"{name}:{n}": t for name, learner in self.learners.items() for n, t in learner.tensors().items()}

    def wait_for_copies(self) -> None:
        """Wait until what `save` copies may change: before a learner's step, beside which nothing is copied."""
        for copy in self._copies:
            copy.wait()
        self._copies = []
        self.saver.wait_until_copied()

    def _model_writers(self) -> dict[str, Callable[[Path], None]]:
        """What writes each folder of a checkpoint: the model, a critic, an adapter."""
        tokenizer = self.policy.tokenizer
        nets = {"model": self.policy.net} | {
            k: lr.whole_net for k, lr in self.learners.items() if isinstance(lr.net, DecoderWithHead)
        }
        folders = {name: self._model_writer(name, net, tokenizer) for name, net in nets.items()}
        adapter: LoRA | None = getattr(self.job, "lora", None)
        if adapter is not None:
            folders["adapter"] = lora.snapshot(self.policy.net, adapter, str(getattr(self.job, "model", "")))
        return folders

    def _model_writer(self, name: str, net: Decoder, tokenizer: Tokenizer) -> Callable[[Path], None]:
        """What writes a model as it is now: a folder that others load, with the adapter merged; or, where the base
        model stays in its own file, a reference to it."""
        copies: list[HostCopy] = []

        def start_copy(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            copies.append(self._host_buffers.setdefault(name, HostBuffers()).start(tensors))
            return copies[-1].tensors

        copy = start_copy if self.saver.background else False
        weights = hf.snapshot(net, copy=copy, base=self._base if net is self.policy.net else None)
        self._copies += copies

        def write(folder: Path) -> None:
            for copy in copies:
                copy.wait()
            weights(folder)
            tokenizer.save(folder)
            if isinstance(net, DecoderWithReference):
                tokenizer.save(folder / hf.REFERENCE_FOLDER)

        return write


def _shortest(learner: Learner, traces: Sequence[Trace], count: int = 2) -> list[Trace]:
    """The shortest traces that have a gradient. A KL term alone does not count: while the policy equals its reference,
    the gradient of the term is rounding error.
    """
    objective = learner.objective
    live = plan(traces, objective.weigh, trains_zero_advantage=False)
    if not live and objective.kl is None:
        live = plan(traces, objective.weigh, objective.trains_zero_advantage)
    return sorted((w.trace for w in live), key=lambda t: sum(len(s.token_ids) for s in t.steps))[:count]


def _tensors_of(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n.removeprefix(f"{name}:"): t for n, t in tensors.items() if n.startswith(f"{name}:")}
