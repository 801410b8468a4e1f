"""Collect traces as training data: a strategy solves training problems. Resumes by problem and stores every trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ponder import event_loop, memory_check
from ponder.common_settings import TASK_HELP, MaxConcurrency, Model, Template
from ponder.errors import UsageError
from ponder.measure.statistics.evaluation_report import EvaluationReport, evaluation_report
from ponder.models.guides import guide_code, is_oracle, load_guide
from ponder.models.load import load_inference_policy
from ponder.pipelines.evaluate import accuracy_so_far
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.check_inputs import require_problems
from ponder.pipelines.job.named_fields import StrategyOrName, TaskOrName, required
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.record_tokens import record_tokens
from ponder.pipelines.job.resolve_names import resolve_names
from ponder.pipelines.job.shared_fields import ComputeFields
from ponder.pipelines.job.tool_fields import ToolFields
from ponder.pipelines.problems.prompt_style import apply_style
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.problems.solve_many import solve_many
from ponder.pipelines.rewards.verifier_workers import VerifierWorkerCount, check_verifier_workers, over_verifier_workers
from ponder.pipelines.solve import try_solve
from ponder.pipelines.training.open_sampler import (
    ReplicaEngineName,
    Replicas,
    TensorParallel,
    check_replicas,
    host_if_split,
    over_replicas,
)
from ponder.protocols import NoProgress, Policy, Progress, Scorer
from ponder.reason.budget import Budget
from ponder.reason.strategies import Samples
from ponder.runs import Run, read_traces
from ponder.runs.trust import names_code
from ponder.settings import Named
from ponder.types import Problem, Trace

COLLECT_GUIDE_HELP = "what guides a search: oracle (the gold answer), likelihood, p_true, reward:FOLDER, genrm:MODEL"


@dataclass(frozen=True)
class Collect(ToolFields, ComputeFields, BaseJob):
    """The job: `limit` training problems from `start_index` on, in the order of a training run with this seed."""

    task: Annotated[TaskOrName, Named("ponder.tasks:TASKS"), TASK_HELP] = required()
    model: Model = "smollm2"
    template: Template = None
    strategy: StrategyOrName = Samples(4)  # type: ignore[assignment]
    # "oracle": the gold answer guides the search, which training data allows; the traces say so
    guide: Annotated[str, COLLECT_GUIDE_HELP] = field(default="", metadata=names_code(guide_code))
    budget: Budget | None = None  # of each problem
    limit: Annotated[int, "training problems to answer"] = 256
    start_index: Annotated[int, "the first of them, in the order of a training run with this seed"] = 0
    max_concurrency: MaxConcurrency = 128
    replicas: Replicas = 0
    replica_engine: ReplicaEngineName = "ponder"
    tensor_parallel: TensorParallel = 1
    verifier_workers: VerifierWorkerCount = 0

    def __post_init__(self) -> None:
        resolve_names(self)
        object.__setattr__(self, "task", apply_style(self.task, self.strategy, self.template))
        self.add_tools()
        self.check_shared_fields()
        self.check_at_least_one("max_concurrency", "limit")
        if self.start_index < 0:
            raise UsageError(f"start_index is {self.start_index}; it must be 0 or more")
        check_replicas(self.replicas, self.tensor_parallel)
        check_verifier_workers(self.verifier_workers)

    def check_memory(self) -> None:
        memory_check.require_trace_memory({"limit": self.limit}, {"n": getattr(self.strategy, "n", 1)})

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> EvaluationReport:
        self.check_memory()
        progress = progress or NoProgress()
        require_problems(self.task, "train")
        chosen = {p.id: p for p in shuffled_problems(self.task.train, self.seed, self.start_index, self.limit)}
        job, run = open_run(self, folder)
        with run:
            progress.phase("load")
            device, dtype = host_if_split(job)
            policy = load_inference_policy(job.model, template=self.template, device=device, dtype=dtype)
            record_tokens(run, policy)
            policy.on_tokens = progress.tokens
            policy.reseed(self.seed, self.start_index)
            guide = load_guide(job.guide, policy, self.task, self.device, self.dtype)
            traces = event_loop.run(self._solve(list(chosen.values()), policy, run, progress, guide))
        return self._report(traces)

    async def _solve(
        self, problems: Sequence[Problem], policy: Policy, run: Run, progress: Progress, guide: Scorer | None
    ) -> list[Trace]:
        verifier = self.task.verifier
        async with (
            over_replicas(self, policy, run.folder, self.seed, self.start_index) as sampler,
            over_verifier_workers(self.task, self.verifier_workers, run.folder) as grader,
        ):
            work = partial(
                try_solve, strategy=self.strategy, policy=sampler, verifier=grader, guide=guide, budget=self.budget,
                oracle=is_oracle(self.guide),
            )  # fmt: skip
            return await solve_many(
                problems, work, run, progress, max_concurrency=self.max_concurrency,
                report_every=max(1, self.max_concurrency // 4),
                metrics=partial(accuracy_so_far, verifier_name=verifier.name),
            )  # fmt: skip

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        last = {trace.problem.id: trace for _, trace in read_traces(folder)}  # a resumed run repeats failures
        lines = self._report(list(last.values())).lines()
        use = f"use it    ponder harvest {folder} --out chains.jsonl"
        return [f"traces          of {len(last)} problems", *lines, use, f"run       {folder}"]

    def _report(self, traces: Sequence[Trace]) -> EvaluationReport:
        verifier = self.task.verifier
        return evaluation_report(
            traces, verifier.name, getattr(verifier, "extract_answer", None), strategy=self.strategy
        )
