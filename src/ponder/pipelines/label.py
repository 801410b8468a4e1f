"""Step labelling: a strategy writes answers, they are split into steps, and rollouts from each step label it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ponder import event_loop, memory_check
from ponder.common_settings import TASK_HELP, MaxConcurrency, Model, Template
from ponder.errors import TaskError, UsageError
from ponder.filter_report import FilterReport
from ponder.models.base_policy import BasePolicy
from ponder.models.load import load_inference_policy
from ponder.pipelines.job.base_job import BaseJob
from ponder.pipelines.job.check_inputs import require_problems
from ponder.pipelines.job.named_fields import StrategyOrName, TaskOrName, required
from ponder.pipelines.job.open_run import open_run
from ponder.pipelines.job.record_tokens import record_tokens
from ponder.pipelines.job.resolve_names import resolve_names
from ponder.pipelines.job.shared_fields import ComputeFields
from ponder.pipelines.problems.held_out import raise_if_all_held_out, training_traces
from ponder.pipelines.problems.prompt_style import apply_style
from ponder.pipelines.problems.solve_many import solve_many
from ponder.pipelines.rewards.labelled_traces import check_same_tokens
from ponder.pipelines.rewards.step_labelling import MathShepherd, StepLabeller
from ponder.pipelines.rewards.verifier_workers import VerifierWorkerCount, check_verifier_workers, over_verifier_workers
from ponder.pipelines.solve import solve
from ponder.pipelines.training.open_sampler import (
    ReplicaEngineName,
    Replicas,
    TensorParallel,
    check_replicas,
    host_if_split,
    over_replicas,
)
from ponder.protocols import NoProgress, Policy, Progress, Scorer
from ponder.reason.strategies import Samples
from ponder.runs import Run, read_job, read_traces, write_json
from ponder.runs.data_files import FILTER_REPORT_FILE
from ponder.settings import Named
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.tasks.step_labels.step_split import split_steps
from ponder.types import Cost, Problem, ProblemKey, Trace, problem_key


@dataclass(frozen=True)
class Label(ComputeFields, BaseJob):
    """The job: label the steps of answers to a task's training problems.

    A strategy writes the answers, or they come from runs (`data`; of a problem with several traces, the last one).
    `separator` splits a long step; None leaves steps as they are. The run directory is training data for a reward
    model.
    """

    task: Annotated[TaskOrName, Named("ponder.tasks:TASKS"), TASK_HELP] = required()
    model: Model = "smollm2"
    template: Template = None
    data: tuple[str, ...] = ()
    include_held_out: Annotated[bool, "of these runs also an evaluation's problems"] = False
    strategy: StrategyOrName = Samples(4)  # type: ignore[assignment]
    labeller: StepLabeller = MathShepherd()
    separator: Annotated[str | None, "where a step ends; none: steps as they are"] = "\n"
    limit: Annotated[int, "the first so many training problems"] = 100
    max_concurrency: MaxConcurrency = 32
    replicas: Replicas = 0
    replica_engine: ReplicaEngineName = "ponder"
    tensor_parallel: TensorParallel = 1
    verifier_workers: VerifierWorkerCount = 0

    def __post_init__(self) -> None:
        resolve_names(self)
        object.__setattr__(self, "task", apply_style(self.task, self.strategy, self.template))
        self.check_shared_fields()
        self.check_at_least_one("limit", "max_concurrency")
        check_replicas(self.replicas, self.tensor_parallel)
        check_verifier_workers(self.verifier_workers)
        if self.include_held_out and not self.data:
            raise UsageError("include_held_out is for `data`: a task's training problems are never held out")

    def check_memory(self) -> None:
        if not self.data:
            memory_check.require_trace_memory(
                {"limit": min(self.limit, len(self.task.train))}, {"n": getattr(self.strategy, "n", 1)}
            )

    def __call__(self, folder: str | Path, progress: Progress | None = None) -> list[Trace]:
        self.check_memory()
        progress = progress or NoProgress()
        job, run = open_run(self, folder)
        with run:
            answered = read_answers(job)
            progress.phase("load")
            device, dtype = host_if_split(job)
            policy = load_inference_policy(job.model, template=job.template, device=device, dtype=dtype)
            record_tokens(run, policy)
            policy.on_tokens = progress.tokens
            policy.reseed(job.seed)
            traces = event_loop.run(label(job, policy, run, progress, answered))
            if not (run.folder / FILTER_REPORT_FILE).exists():
                write_json(run.folder / FILTER_REPORT_FILE, label_filter_report(traces).to_json())
            check_labels_useful(traces)
        return traces

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        traces = [trace for _, trace in read_traces(folder)]
        metrics = label_metrics(traces)
        steps = int(metrics["labels"])
        mean = f", right {metrics['reward']:.1%} of the time" if steps else ""
        spent = sum((trace.cost for trace in traces), Cost())
        return [
            *label_filter_report(traces).lines(),
            f"labels    {steps} steps of {len(traces)} problems{mean}; {metrics['frac_undecided']:.1%} undecided",
            f"cost      {spent.generated_tokens} tokens written, {spent.cached_tokens} read from the cache",
            f"use it    ponder reward {folder} --algorithm prm",
            f"run       {folder}",
        ]


def read_answers(job: Label) -> dict[ProblemKey, Trace]:
    """The answers that `data` holds, by problem. Raises if there is nothing to label, which needs no model to see."""
    report = FilterReport()
    answered = {
        problem_key(t.problem): t for place in job.data for t in _read_answers(place, report, job.include_held_out)
    }
    if job.data and not answered:
        raise_if_all_held_out(report)
        raise TaskError(f"{', '.join(job.data)} has no problems to label answers of")
    if not job.data:
        require_problems(job.task, "train")
    return answered


async def label(
    job: Label, policy: BasePolicy, run: Run, progress: Progress, answered: Mapping[ProblemKey, Trace]
) -> list[Trace]:
    problems = [t.problem for t in answered.values()] if job.data else list(job.task.train[: job.limit])
    problems = problems[: job.limit]

    async def work(problem: Problem, sampler: Policy, verifier: Scorer) -> Trace:
        if job.data:
            trace = answered[problem_key(problem)]
            check_same_tokens(trace, policy)
        else:
            trace = await solve(problem, job.strategy, sampler, verifier)
        if job.separator:
            trace = split_steps(trace, policy.text, job.separator)
        await job.labeller(trace, sampler, verifier)
        return trace

    def metrics(traces: Collection[Trace]) -> dict[str, float]:
        values = label_metrics(traces)
        run.write_metrics(len(traces) - 1, values)
        return values

    async with (
        over_replicas(job, policy, run.folder, job.seed) as sampler,
        over_verifier_workers(job.task, job.verifier_workers, run.folder) as grader,
    ):
        return await solve_many(
            problems, partial(work, sampler=sampler, verifier=grader), run, progress,
            max_concurrency=job.max_concurrency, report_every=job.max_concurrency, retry_failed=False, metrics=metrics,
        )  # fmt: skip


def _read_answers(place: str, report: FilterReport, include_held_out: bool) -> list[Trace]:
    """The traces of a run that hold an answer."""
    read_job(place)  # raises if that is no run directory
    return [trace for trace in training_traces(place, report, include_held_out) if len(trace.steps) > 1]


def label_filter_report(traces: Iterable[Trace]) -> FilterReport:
    """How many answers and steps got a label, stage by stage."""
    report = FilterReport()
    for trace in traces:
        report.add("problems", 1)
        report.record("with an answer", bool(trace.answers()), "no answer came to an end")
        for score in (s.scores[LABEL_SCORE] for s in trace.steps if LABEL_SCORE in s.scores):
            report.add("steps tried", 1)
            if report.record("with a label", score.value is not None, "undecided"):
                report.record("labelled right, wholly or partly", (score.value or 0.0) > 0, "never right")
    return report


def check_labels_useful(traces: Sequence[Trace]) -> None:
    """Raise if a reward model could learn nothing from these labels. They stay in the run directory."""
    values = {s.scores[LABEL_SCORE].value for t in traces for s in t.steps if LABEL_SCORE in s.scores} - {None}
    if not values:
        why = "no step got a label"
        cure = "`ponder traces` shows why each is undecided; steps need a verifier that decides, and answers that end"
    elif values == {0.0}:
        why, cure = "no answer was ever right, so that all labels are 0", "take an easier task or a better model"
    elif len(values) == 1:
        why, cure = f"all labels are {values.pop():g}", "take a harder task, so that some steps are wrong"
    else:
        return
    label_filter_report(traces).fail(f"{why}, and a judge learns nothing from them: {cure}")


def label_metrics(traces: Iterable[Trace]) -> dict[str, float]:
    """How many steps are labelled, how many are undecided, and the mean label."""
    values = [s.scores[LABEL_SCORE].value for t in traces for s in t.steps if LABEL_SCORE in s.scores]
    known = [value for value in values if value is not None]
    metrics = {"labels": float(len(known)), "frac_undecided": 1 - len(known) / max(1, len(values))}
    return metrics | ({"reward": sum(known) / len(known)} if known else {})
