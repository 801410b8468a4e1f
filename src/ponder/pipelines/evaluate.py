"""Evaluation: task x strategy -> traces -> accuracy with an interval. Resumes by problem; every trace is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ponder import event_loop, memory_check
from ponder.errors import Interrupted, ModelError, TaskError, UsageError
from ponder.measure.evaluation_report import EvaluationReport, evaluation_report, running_accuracy
from ponder.models.guides import guide_code, is_oracle, load_guide
from ponder.models.load import load_inference_policy, pin_checkpoint
from ponder.models.model_fingerprints import pin_guide
from ponder.pipelines.job.input_fingerprints import input_fingerprints
from ponder.pipelines.problems.prompt_style import apply_style
from ponder.pipelines.solve import try_solve
from ponder.protocols import NoProgress, Policy, Progress, Scorer, Strategy, Task
from ponder.reason.budget import Budget, BudgetLedger
from ponder.reason.strategies import Chain
from ponder.runs import Run, problem_changes, read_traces
from ponder.runs.trust import names_code
from ponder.types import Cost, Problem, Trace

MAX_EARLY_FAILURES = 16  # failures from the start on that end an evaluation: it is the settings, not the problems


@dataclass(frozen=True)
class Evaluate:
    """The job: held-out problems of a task, solved by a strategy."""

    task: Task
    model: str = "smollm2"
    template: str | None = None
    strategy: Strategy = Chain()
    # what guides a search (see `guides`); "oracle" is the task's verifier, and is said everywhere
    guide: str = field(default="", metadata=names_code(guide_code))
    budget: Budget | None = None  # of each problem
    shared_budget: bool = False  # it is the budget of all problems: whoever thinks hard leaves less to the others
    limit: int | None = None  # the first so many problems; None: all
    max_concurrency: int = 128  # problems in flight, and lost at most when interrupted
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", apply_style(self.task, self.strategy, self.template))
        if self.max_concurrency < 1 or (self.limit is not None and self.limit < 1) or self.seed < 0:
            raise UsageError("max_concurrency and limit must each be at least 1, seed at least 0")

    def __call__(self, folder: str | Path, watch: Progress | None = None) -> EvaluationReport:
        watch = watch or NoProgress()
        job = replace(self, model=pin_checkpoint(self.model), guide=pin_guide(self.guide, folder))
        with Run(folder, job, input_fingerprints(job)) as run:
            watch.phase("load")
            policy = load_inference_policy(job.model, template=self.template, device=self.device, dtype=self.dtype)
            policy.on_tokens = watch.tokens
            policy.reseed(self.seed)
            guide = load_guide(job.guide, policy, self.task, self.device, self.dtype)
            return event_loop.run(evaluate(job, policy, run, watch, guide))


async def evaluate(
    job: Evaluate, policy: Policy, run: Run, watch: Progress, guide: Scorer | None = None
) -> EvaluationReport:
    problems = list(job.task.test[: job.limit] if job.limit else job.task.test)
    if not problems:
        raise TaskError(f"the task {job.task.name} has no held-out problems: check its settings or its data folder")
    memory_check.require_trace_memory({"limit": len(problems)}, {"n": getattr(job.strategy, "n", 1)})
    verifier = job.task.verifier
    budget: Budget | BudgetLedger | None = job.budget
    if job.budget is not None and job.shared_budget:
        budget = BudgetLedger(job.budget, sum((t.cost for _, t in read_traces(run.folder)), Cost()))
    traces = await solve_and_keep(
        problems, job.strategy, policy, verifier, run, watch, job.max_concurrency,
        guide=guide, budget=budget, oracle=is_oracle(job.guide),
    )  # fmt: skip
    name = "" if guide is None else guide.name
    return evaluation_report(traces, verifier.name, getattr(verifier, "extract_answer", None), name, job.strategy)


async def solve_and_keep(
    problems: Sequence[Problem], strategy: Strategy, policy: Policy, verifier: Scorer, run: Run, watch: Progress, batch: int,
    **more: Any,
) -> list[Trace]:  # fmt: skip
    """A trace of each problem: those the run has, and new ones, kept as they are done. `more`: as `solve`."""
    kept = [trace for _, trace in read_traces(run.folder)]
    problem_changes.check_problems_unchanged(run, kept, problems)
    traces = {trace.problem.id: trace for trace in kept if not trace.failed}
    left, fresh, often = [p for p in problems if p.id not in traces], list[Trace](), max(1, batch // 4)

    async def think(problem: Problem) -> Trace:
        return await try_solve(problem, strategy, policy, verifier, **more)

    watch.phase("solve")
    try:
        async for trace in _run_in_flight(left, batch, think):
            run.write_traces(0, [trace])
            traces[trace.problem.id] = trace
            fresh.append(trace)
            if len(fresh) == len(traces) == min(len(left), MAX_EARLY_FAILURES) and all(t.failed for t in fresh):
                raise ModelError(f"all problems fail, the last one because: {trace.failed}")
            if len(fresh) % often == 0 or len(fresh) == len(left):
                watch.step(
                    len(traces),
                    len(problems),
                    {"accuracy": running_accuracy(traces.values(), verifier.name)},
                    fresh[-often:],
                )
    except Interrupted:
        done = len(traces)
        raise Interrupted(f"stopped after {done} of {len(problems)} problems; the same command goes on") from None
    return [traces[p.id] for p in problems]


async def _run_in_flight(
    problems: Sequence[Problem], most: int, work: Callable[[Problem], Coroutine[Any, Any, Trace]]
) -> AsyncIterator[Trace]:
    """Each problem's trace when it is done, so many at a time: a slow one holds up nobody."""
    waiting, running = iter(problems), list[asyncio.Task[Trace]]()
    try:
        while True:
            running += [asyncio.create_task(work(p)) for p in islice(waiting, most - len(running))]
            if not running:
                return
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            done, running = [t for t in running if t.done()], [t for t in running if not t.done()]
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
