"""Evaluation: task x strategy -> traces -> accuracy with an interval. Resumes by problem; every trace is kept."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ponder.errors import Interrupted, TaskError, UsageError
from ponder.measure import Accuracy, Mean, mean_of
from ponder.models.load import load_any, pin
from ponder.pipelines.solve import solve_all
from ponder.protocols import Policy, Silent, Strategy, Task, Watch
from ponder.reason.operators import majority
from ponder.reason.strategies import Chain
from ponder.runs import Run, read_traces
from ponder.types import Cost, Trace


@dataclass(frozen=True)
class Evaluate:
    """The job: held-out problems of a task, solved by a strategy."""

    task: Task
    model: str = "smollm2"
    template: str | None = None
    strategy: Strategy = Chain()
    limit: int | None = None  # the first so many problems; None: all
    batch: int = 128  # problems in flight, and lost at most when interrupted
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.batch < 1 or (self.limit is not None and self.limit < 1) or self.seed < 0:
            raise UsageError("batch and limit must each be at least 1, seed at least 0")

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> Report:
        watch = watch or Silent()
        job = replace(self, model=pin(self.model))
        with Run(folder, job) as run:
            watch.phase("load")
            policy = load_any(job.model, template=self.template, device=self.device, dtype=self.dtype)
            policy.watch = watch.tokens
            policy.stream(self.seed)
            return asyncio.run(evaluate(job, policy, run, watch))


@dataclass(frozen=True)
class Report:
    """What an evaluation found. `single` is one sample's accuracy; votes and coverage need more samples."""

    problems: int
    samples: int  # per problem
    single: Accuracy | Mean
    majority: Accuracy | Mean | None
    coverage: Accuracy | Mean | None  # any of the samples is right
    undecided: int
    cost: Cost

    def lines(self) -> list[str]:
        c = self.cost
        rows: dict[str, object] = {"accuracy": self.single}
        if self.majority is not None:
            rows[f"majority of {self.samples}"] = self.majority
        if self.coverage is not None:
            rows[f"any of {self.samples}"] = self.coverage
        if self.undecided:
            rows["undecided"] = f"{self.undecided} samples: the verifier could not judge them"
        rows["cost"] = f"{c.generated_tokens:,} tokens written, {c.flops / 1e12:.1f} TFLOP, {c.seconds:.0f} s"
        return [f"{name:<15} {value}" for name, value in rows.items()]


async def evaluate(job: Evaluate, policy: Policy, run: Run, watch: Watch) -> Report:
    problems = list(job.task.test[: job.limit] if job.limit else job.task.test)
    if not problems:
        raise TaskError(f"the task {job.task.name} has no held-out problems: check its settings or its data folder")
    verifier = job.task.verifier
    traces = {trace.problem.id: trace for _, trace in read_traces(run.folder)}
    left = [p for p in problems if p.id not in traces]
    watch.phase("solve")
    for first in range(0, len(left), job.batch):
        try:
            fresh = await solve_all(left[first : first + job.batch], job.strategy, policy, verifier)
        except BaseExceptionGroup as stop:
            if not stop.subgroup(Interrupted):
                raise
            done = len(problems) - len(left) + first
            raise Interrupted(f"stopped after {done} of {len(problems)} problems; the same command goes on") from None
        run.traces(0, fresh)
        traces |= {t.problem.id: t for t in fresh}
        watch.step(len(traces), len(problems), {"accuracy": so_far(traces.values(), verifier.name)}, fresh)
    return report([traces[p.id] for p in problems], verifier.name, getattr(verifier, "read", None))


def so_far(traces: Iterable[Trace], scorer: str) -> float:
    """Mean score of what was judged; NaN while nothing was."""
    judged = [s for t in traces for i in t.answers() if (s := t.score(i, scorer)) is not None]
    return sum(judged) / len(judged) if judged else math.nan


def report(traces: Sequence[Trace], scorer: str, read: Callable[[str], str | None] | None) -> Report:
    """Numbers from traces alone; `read` finds the answer that votes are counted on (None: no vote)."""
    scores = [[t.score(i, scorer) for i in t.answers()] for t in traces]
    samples = max(map(len, scores))
    undecided = sum(s is None for group in scores for s in group)
    cost = sum((t.cost for t in traces), Cost())
    if samples == 1:
        single = _rate([group[0] if group else None for group in scores])
        return Report(len(traces), 1, single, None, None, undecided, cost)
    judged = [[s for s in group if s is not None] for group in scores]
    means = [sum(group) / len(group) if group else None for group in judged]
    coverage = _rate([max(group) if group else None for group in judged])
    voted = None if read is None else _rate([_vote(t, scorer, read) for t in traces])
    return Report(len(traces), samples, mean_of(means), voted, coverage, undecided, cost)


def _rate(values: list[float | None]) -> Accuracy | Mean:
    """Right or wrong has its own interval; graded scores get the bootstrap's."""
    return Accuracy.of(values) if set(values) <= {0.0, 1.0, None} else mean_of(values)


def _vote(trace: Trace, scorer: str, read: Callable[[str], str | None]) -> float | None:
    """The score of what most samples say. Saying nothing is wrong, unless nobody could judge it."""
    chosen = majority(trace, trace.answers(), read)
    if chosen is not None:
        return trace.score(chosen, scorer)
    return 0.0 if any(trace.score(i, scorer) is not None for i in trace.answers()) else None
