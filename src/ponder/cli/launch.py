"""A job in its run directory: run it, show how it goes, say what came out."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.progress import HEADLINE_METRICS, ProgressTracker, format_duration, print_json, progress_display
from ponder.errors import RunError

if TYPE_CHECKING:
    from ponder.measure.statistics.evaluation_report import EvaluationReport
    from ponder.pipelines.evaluate import Evaluate
    from ponder.pipelines.stages import Stages
    from ponder.reason.budget import Budget


EXIT_UNMEASURED = 3  # the exit code of an evaluation of which too many problems have no verdict


class JobLaunch(NamedTuple):
    """A job and where to run it: what a command makes of its flags, for `start` or for `ponder plan`."""

    job: Any
    folder: Path
    json: bool
    no_resume: bool = False


def run_job(job: Any, folder: Path, json: bool, no_resume: bool = False) -> int:
    if no_resume and (folder / "job.json").exists():
        raise RunError(
            f"{folder} holds a run already, which --no-resume leaves alone: give another --run, or remove it"
        )
    from ponder.pipelines.job.finished_training import finished_model
    from ponder.runs.cleanup import remove_failed_start
    from ponder.runs.prior_results import PriorResults

    warn_ineffective_job(job)
    before = PriorResults.read(folder)
    with GracefulStop() as stop:
        with job_progress(job, folder, stop, json) as seen:
            with remove_failed_start(folder):
                result = finished_model(job, folder) or job(folder, seen)
    if json:
        print_json({"event": "done", "run": str(folder), **result_json(job, folder, result), **before.to_json()})
    else:
        print("\n".join([*before.lines(), *result_lines(job, folder, result)]))
    return EXIT_UNMEASURED if is_unmeasured(result) else 0


def is_unmeasured(result: Any) -> bool:
    """Whether an evaluation, or one among stages, left so many problems without a verdict that it measured nothing."""
    if isinstance(result, dict):
        return any(map(is_unmeasured, result.values()))
    return bool(getattr(result, "unmeasured", ""))


def warn_ineffective_job(job: Any) -> None:
    """Say which settings of a job's strategies cannot do what they say."""
    from ponder.pipelines.stages import Stages

    for one in [stage.job for stage in job.stages] if isinstance(job, Stages) else [job]:
        if (strategy := getattr(one, "strategy", None)) is not None:
            warn_ineffective_strategy(strategy, getattr(one, "budget", None))


def warn_ineffective_strategy(strategy: Any, budget: Budget | None) -> None:
    from ponder.reason.ineffective_settings import ineffective_settings

    for line in ineffective_settings(strategy, budget):
        print(f"  ! {line}", file=sys.stderr, flush=True)


def job_progress(job: Any, folder: Path, stop: GracefulStop, json: bool, title: str = "") -> ProgressTracker:
    """Progress of a job; a run that goes on shows its earlier steps too."""
    from ponder.pipelines.evaluate import Evaluate
    from ponder.runs import newest_checkpoint, read_metrics
    from ponder.runs.cleanup import checkpoint_step

    measuring = isinstance(job, Evaluate)
    seen = progress_display(
        title or ("" if json else _progress_title(job)), stop, folder, "problem" if measuring else "step", json
    )
    seen.total = len(job.task.test[: job.limit]) if measuring else getattr(job, "steps", 0)
    if (newest := newest_checkpoint(folder)) is not None:
        seen.done = checkpoint_step(newest)
    for row in read_metrics(folder) if folder.is_dir() else []:
        head = next((row[name] for name in HEADLINE_METRICS if name in row), None)
        if head is not None and row["step"] < seen.done:
            seen.curve[int(row["step"]) + 1] = head
            seen.add_metrics(row)
    return seen


def _progress_title(job: Any) -> str:
    """What is done with which model: `RL · addition · smollm2`."""
    model = getattr(job, "model", "")
    named = model if isinstance(model, str) else type(model).__name__.lower()
    return " · ".join(filter(None, [type(job).__name__, getattr(_task_of(job), "name", ""), named]))


def _task_of(job: Any) -> Any:
    return getattr(job, "task", getattr(job, "data", None))


def _stage_runs(stages: Stages, folder: Path) -> list[tuple[str, tuple[Any, Path]]]:
    """Name, job and run directory of each stage, as they were run."""
    from ponder.runs import job_json, read_job

    trust = job_json.external_code_in(stages)
    where = {stage.name: folder / stage.name for stage in stages.stages}
    return [(name, (job_json.decode(read_job(run), trust), run)) for name, run in where.items()]


def result_lines(job: Any, folder: Path, result: Any) -> list[str]:
    """For people."""
    from ponder.measure.statistics.evaluation_report import EvaluationReport
    from ponder.pipelines.evaluate import Evaluate
    from ponder.pipelines.stages import Stages
    from ponder.runs import checkpoints, read_metrics

    if isinstance(job, Evaluate) and isinstance(result, EvaluationReport):
        return evaluation_lines(job, folder, result)
    if isinstance(job, Stages):
        return [
            line
            for name, part in _stage_runs(job, folder)
            for line in (f"== {name}", *result_lines(*part, result[name]), "")
        ]
    if hasattr(job, "closing"):  # what to say of a job whose model does not answer questions
        return [*job.summary_lines(folder), f"run       {folder}"]
    out = [f"run       {folder}"]
    rows = read_metrics(folder)
    if (name := next((h for h in HEADLINE_METRICS if rows and h in rows[0]), None)) is not None:
        took = format_duration(sum(row.get("step_time", 0.0) for row in rows))
        out.insert(0, f"{name:<9} {rows[0][name]:.3f} -> {rows[-1][name]:.3f} after {len(rows)} steps, {took}")
    if checkpoints(folder):
        test = getattr(_task_of(job), "test", None)
        question = test[0].question if test else "..."
        out.append(f"try it    {solve_hint(question, folder, job)}")
    return out


def solve_hint(question: str, model: Path, job: Any) -> str:
    """A command that asks the trained model, with the budget it was trained with."""
    import shlex

    budget = getattr(getattr(getattr(job, "strategy", None), "sampling", None), "max_tokens", 256)
    more = "" if budget == 256 else f" --max-tokens {budget}"
    return f"ponder solve {shlex.quote(question)} --model {shlex.quote(str(model))}{more}"


def evaluation_lines(job: Evaluate, folder: Path, result: EvaluationReport) -> list[str]:
    """What was measured, and on what: the very prompt that the model saw."""
    return [
        f"task          {job.task.name}, {result.num_problems} held-out problems",
        f"model         {job.model}",
        *result.lines(),
        f"prompt        {first_prompt(job, folder)!r}",
        f"run           {folder}",
    ]


def first_prompt(job: Evaluate, folder: Path) -> str:
    """The first prompt of a run that was answered, from its tokens."""
    from ponder.models.load import load_tokenizer
    from ponder.runs import read_traces

    _, trace = next(read_traces(folder))
    sent = next((s for i, s in enumerate(trace.steps) if s.parent is None and trace.children(i)), trace.steps[0])
    return load_tokenizer(job.model).decode(sent.token_ids, keep_special=True)


def result_json(job: Any, folder: Path, result: Any) -> dict[str, Any]:
    """For programs."""
    from ponder.measure.statistics.evaluation_report import EvaluationReport
    from ponder.pipelines.evaluate import Evaluate
    from ponder.pipelines.stages import Stages
    from ponder.runs import read_metrics

    if isinstance(job, Evaluate) and isinstance(result, EvaluationReport):
        told = {name: value for name, value in asdict(result).items() if value is not None}
        told["single"]["mean"] = result.accuracy.mean
        return {"task": job.task.name, "model": job.model, **told, "prompt": first_prompt(job, folder)}
    if isinstance(job, Stages):
        return {"stages": {name: result_json(*part, result[name]) for name, part in _stage_runs(job, folder)}}
    steps = read_metrics(folder)
    return {"steps": len(steps), **({"last": steps[-1]} if steps else {})}
