"""Evaluation: task x strategy -> traces -> accuracy with an interval. It resumes by problem and stores every trace."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ponder import event_loop, memory_check
from ponder.common_settings import TASK_HELP, Guide, MaxConcurrency, Model, Template
from ponder.errors import ModelError
from ponder.measure.statistics.evaluation_report import EvaluationReport, evaluation_report, running_accuracy
from ponder.models import byte_tokenizer
from ponder.models.guides import guide_code, is_oracle, load_guide
from ponder.models.load import load_inference_policy, load_tokenizer
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.check_inputs import require_problems
from ponder.pipelines.job.named_fields import StrategyOrName, TaskOrName, required
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.record_tokens import record_tokens
from ponder.pipelines.job.resolve_names import resolve_names
from ponder.pipelines.job.shared_fields import ComputeFields
from ponder.pipelines.job.tool_fields import ToolFields
from ponder.pipelines.problems.prompt_style import apply_style
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
from ponder.reason.budget import Budget, BudgetLedger
from ponder.reason.strategies import Chain
from ponder.runs import Run, read_traces
from ponder.runs.trust import names_code
from ponder.settings import Named
from ponder.types import Cost, Problem, Trace


@dataclass(frozen=True)
class Evaluate(ToolFields, ComputeFields, BaseJob):
    """The job: held-out problems of a task, solved by a strategy."""

    task: Annotated[TaskOrName, Named("ponder.tasks:TASKS"), TASK_HELP] = required()
    model: Model = "smollm2"
    template: Template = None
    strategy: StrategyOrName = Chain()  # type: ignore[assignment]
    # See `models.guides`. "oracle": the task's verifier; every report says so.
    guide: Guide = field(default="", metadata=names_code(guide_code))
    budget: Budget | None = None  # of each problem
    shared_budget: Annotated[bool, "the budget is for all problems together"] = False
    limit: Annotated[int | None, "the first so many problems"] = None
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
        self.check_at_least_one("max_concurrency", *([] if self.limit is None else ["limit"]))
        check_replicas(self.replicas, self.tensor_parallel)
        check_verifier_workers(self.verifier_workers)

    @property
    def unit(self) -> str:
        return "problem"

    @property
    def total(self) -> int:
        return len(self.problems())

    def problems(self) -> list[Problem]:
        """The held-out problems of the task, up to the limit."""
        return list(self.task.test[: self.limit] if self.limit else self.task.test)

    def check_memory(self) -> None:
        memory_check.require_trace_memory({"limit": len(self.problems())}, {"n": getattr(self.strategy, "n", 1)})

    def summary_lines(self, folder: Path, result: EvaluationReport) -> list[str]:
        return [
            f"task          {self.task.name}, {result.num_problems} held-out problems",
            f"model         {self.model}",
            *result.lines(),
            f"prompt        {first_prompt(self.model, folder)!r}",
            f"run           {folder}",
        ]

    def summary_json(self, folder: Path, result: EvaluationReport) -> dict[str, Any]:
        report = {name: value for name, value in asdict(result).items() if value is not None}
        report["accuracy"]["mean"] = result.accuracy.mean
        return {"task": self.task.name, "model": self.model, **report, "prompt": first_prompt(self.model, folder)}

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> EvaluationReport:
        progress = progress or NoProgress()
        require_problems(self.task, "test")
        job, run = open_run(self, folder)
        with run:
            progress.phase("load")
            device, dtype = host_if_split(job)
            policy = load_inference_policy(job.model, template=self.template, device=device, dtype=dtype)
            record_tokens(run, policy)
            policy.on_tokens = progress.tokens
            policy.reseed(self.seed)
            guide = load_guide(job.guide, policy, self.task, self.device, self.dtype)
            return event_loop.run(evaluate(job, policy, run, progress, guide))


async def evaluate(
    job: Evaluate, policy: Policy, run: Run, progress: Progress, guide: Scorer | None = None
) -> EvaluationReport:
    problems = job.problems()
    require_problems(job.task, "test")
    job.check_memory()
    verifier = job.task.verifier
    budget: Budget | BudgetLedger | None = job.budget
    if job.budget is not None and job.shared_budget:
        budget = BudgetLedger(job.budget, sum((t.cost for _, t in read_traces(run.folder)), Cost()))
    async with (
        over_replicas(job, policy, run.folder, job.seed) as sampler,
        over_verifier_workers(job.task, job.verifier_workers, run.folder) as grader,
    ):
        work = partial(
            try_solve, strategy=job.strategy, policy=sampler, verifier=grader, guide=guide, budget=budget,
            oracle=is_oracle(job.guide),
        )  # fmt: skip
        traces = await solve_many(
            problems, work, run, progress, max_concurrency=job.max_concurrency,
            report_every=max(1, job.max_concurrency // 4),
            metrics=partial(accuracy_so_far, verifier_name=verifier.name),
        )  # fmt: skip
    name = "" if guide is None else guide.name
    report = evaluation_report(
        traces, verifier.name, getattr(verifier, "extract_answer", None), name, job.strategy,
        hasattr(verifier, "episodes"),
    )  # fmt: skip
    run.result_metrics["accuracy"] = report.accuracy.mean
    return report


def accuracy_so_far(traces: Collection[Trace], verifier_name: str) -> dict[str, float]:
    """What progress shows while problems are solved."""
    return {"accuracy": running_accuracy(traces, verifier_name)}


def first_prompt(model: str, folder: Path) -> str:
    """The first prompt of a run that was answered: the very text that the model saw, from its tokens."""
    _, trace = next(read_traces(folder))
    sent = next((s for i, s in enumerate(trace.steps) if s.parent is None and trace.children(i)), trace.steps[0])
    try:
        return load_tokenizer(model).decode(sent.token_ids, keep_special=True)
    except ModelError:  # a server that is gone; one that talks in text has bytes as its tokens
        plain = byte_tokenizer.make_tokenizer()
        if sent.token_ids.max(initial=0) >= plain.vocab_size:
            return "(its tokenizer is at a server that does not answer now)"
        return plain.decode(sent.token_ids, keep_special=True)
