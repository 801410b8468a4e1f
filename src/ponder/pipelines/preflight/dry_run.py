"""A dry run of a training job: its first steps in a temporary folder, with their time and memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ponder import memory_check
from ponder.errors import Interrupted
from ponder.models.ponder_policy import PonderPolicy
from ponder.nets.gpu_share import whole_gpu_memory
from ponder.nets.hardware import pick_device
from ponder.pipelines.preflight.gradient_probe import probe_gradient
from ponder.pipelines.problems.curriculum import PassRateHistory
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.solve import solve_all
from ponder.protocols import Progress
from ponder.train.learner import Learner
from ponder.types import Trace

NUM_TIMED_GROUPS = 4  # groups that are timed in place of all groups of a step


@dataclass(frozen=True)
class DryRun:
    """What the first steps took."""

    sample_seconds: list[float]  # of each step
    learn_seconds: list[float]
    peak_bytes: int  # of the GPU if there is one, else of this process
    total_bytes: int | None  # of the GPU
    first_traces: list[Trace]  # of the first step
    metrics: list[dict[str, float]]  # of each step


class _StepLimitReached(Exception):
    """Ends the dry run; the job treats it as an error and saves nothing."""


class _UserInterrupted(_StepLimitReached):
    """The user interrupted the dry run."""


class _StepLimit:
    """A `Progress` that ends the job after so many steps and forwards to another one."""

    def __init__(self, steps: int, watch: Progress) -> None:
        self.steps, self.watch = steps, watch
        self.rows: list[dict[str, float]] = []
        self.first: list[Trace] = []

    def phase(self, name: str) -> None:
        self._tell(lambda: self.watch.phase(name))

    def tokens(self, count: int) -> None:
        self._tell(lambda: self.watch.tokens(count))

    def share(self, done: float) -> None:
        self._tell(lambda: self.watch.share(done))

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        self.rows.append(dict(metrics))
        self.first = self.first or list(traces)
        if done >= self.steps:
            raise _StepLimitReached

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Interrupted as stop:
            raise _UserInterrupted from stop


def dry_run(job: RL | FineTune, steps: int, watch: Progress) -> DryRun:
    """Run the first steps of a job, with its own settings, in a temporary folder."""
    device = pick_device(job.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    clock = _StepLimit(steps, watch)
    job = replace(job, preflight=False) if isinstance(job, RL) else job
    with tempfile.TemporaryDirectory(prefix="ponder-plan-") as folder:
        try:
            job(Path(folder) / "run", clock)
        except Exception as end:
            error = _unwrap_group(end)
            if isinstance(error, _UserInterrupted):
                raise Interrupted("stopped; nothing was kept") from None
            if not isinstance(error, _StepLimitReached):
                raise error from None
    memory, of = peak_memory(device)
    sample = [row.get("time/sample", 0.0) for row in clock.rows]
    learn = [row["step_time"] - s for row, s in zip(clock.rows, sample, strict=True)]
    return DryRun(sample, learn, memory, of, clock.first, clock.rows)


def _unwrap_group(error: Exception) -> Exception:
    """The first error inside nested exception groups."""
    return _unwrap_group(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def peak_memory(device: torch.device) -> tuple[int, int | None]:
    """Peak and total bytes, the total only of a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), whole_gpu_memory(device)
    return memory_check.peak_memory(), None


def time_full_pass(learner: Learner, traces: Sequence[Trace]) -> float:
    """Estimated seconds to learn from all these groups if each had a gradient, from a pass over some of them.

    The pass leaves out most weight gradients, a third of the work (forward, backward to inputs, backward to weights).
    """
    some = [Trace(t.problem, [replace(s) for s in t.steps]) for t in traces[:NUM_TIMED_GROUPS]]
    for trace in some:
        for k, step in enumerate(s for s in trace.steps if s.sampled):
            step.advantages = np.full(len(step.token_ids), 1.0 if k % 2 else -1.0, np.float32)
    began = time.perf_counter()
    probe_gradient(learner, some, learner.max_tokens_per_microbatch)
    return 1.5 * (time.perf_counter() - began) * len(traces) / max(1, len(some))


async def sample_groups(job: RL, policy: PonderPolicy, count: int, have: Sequence[Trace] = ()) -> list[Trace]:
    """Traces of the job's strategy on at least `count` of its first problems; `have` are those of the first ones."""
    traces = list(have)
    if len(traces) < count:
        policy.reseed(job.seed, 0, *([1] if traces else []))
        problems = job.task.train
        chosen = job.curriculum.choose(problems, job.seed, len(traces), count - len(traces), PassRateHistory())
        traces += await solve_all([problems[i] for i in chosen], job.rollout_strategy, policy, job.task.verifier)
    return traces
