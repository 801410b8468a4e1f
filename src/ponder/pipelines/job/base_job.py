"""What the jobs of ponder have in common: how each describes itself to the command line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, cast

from ponder.errors import TaskError
from ponder.pipelines.job.python_use import run_as_user_would
from ponder.protocols import Job, Progress, Strategy
from ponder.runs.run_summary import HEADLINE_METRICS as HEADLINE_METRICS

DEFAULT_ANSWER_TOKENS = 256  # of `ponder solve`


class BaseJob:
    """`protocols.Job` for a job with the usual fields: `task` or `data`, `model`, `steps`, `strategy`, `budget`.

    A subclass is a frozen dataclass with a `__call__`. What it says here is of a job that trains; others override it.
    Called from Python, a job shows its progress and cleans up as on the command line (see `python_use`).
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__call__" in vars(cls):
            cls.__call__ = run_as_user_would(vars(cls)["__call__"])  # type: ignore[method-assign]

    def __call__(self, folder: str | Path, progress: Progress | None = None, /) -> Any:
        raise NotImplementedError

    @property
    def title(self) -> str:
        model = getattr(self, "model", "")
        model_name = model if isinstance(model, str) else type(model).__name__.lower()
        return " · ".join(filter(None, [type(self).__name__, getattr(_task_of(self), "name", ""), model_name]))

    @property
    def unit(self) -> str:
        return "step"

    @property
    def total(self) -> int:
        return int(getattr(self, "steps", 0))

    def check_memory(self) -> None:
        pass

    def check_inputs(self) -> None:
        """Raise for what the job names and cannot use, as far as that is known without a model."""
        from ponder.pipelines.job.check_inputs import check_inputs  # torch

        check_inputs(self)

    def strategies(self) -> list[tuple[Strategy, Any]]:
        strategy = getattr(self, "strategy", None)
        return [] if strategy is None else [(strategy, getattr(self, "budget", None))]

    def training_jobs(self) -> list[tuple[str, Any]]:
        return []

    def summary_lines(self, folder: Path, result: Any) -> list[str]:
        return training_summary(self, folder)

    def summary_json(self, folder: Path, result: Any) -> dict[str, Any]:
        steps = _read_metrics(folder)
        return {"steps": len(steps), **({"last": steps[-1]} if steps else {})}


class _PlainJob(BaseJob):
    """A user's own job that has a `__call__` and fields, and nothing else."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def __call__(self, folder: str | Path, progress: Progress | None = None, /) -> Any:
        return self._job(folder, progress)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    @property
    def title(self) -> str:
        return super().title.replace(type(self).__name__, type(self._job).__name__, 1)


def as_job(job: Any) -> Job:
    """The job itself, or a user's own one with the answers of `BaseJob`."""
    return cast(Job, job) if isinstance(job, BaseJob) else _PlainJob(job)


def _read_metrics(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run; none of a user's own job, which may keep no run."""
    from ponder.runs import read_metrics

    return read_metrics(folder) if (folder / "job.json").is_file() else []


def training_summary(job: Any, folder: Path) -> list[str]:
    """How far the headline metric came, and a command that asks the trained model a question."""
    from ponder.runs import checkpoints

    lines = [f"run       {folder}"]
    rows = _read_metrics(folder)
    if (name := next((metric for metric in HEADLINE_METRICS if rows and metric in rows[0]), None)) is not None:
        took = format_duration(sum(row.get("step_time", 0.0) for row in rows))
        steps = format_steps(len(rows))
        lines.insert(0, f"{name:<9} {rows[0][name]:.3f} -> {rows[-1][name]:.3f} after {steps}, {took}")
    if checkpoints(folder):
        lines.append(f"try it    {solve_hint(_example_question(_task_of(job)), folder, job)}")
    return lines


def _example_question(task: Any) -> str:
    """A held-out question; a training question where none is held out; `...` for data without a task."""
    for split in ("test", "train"):
        try:
            problems = getattr(task, split, None)
        except TaskError:  # its space is too small for two splits
            continue
        if problems:
            return str(problems[0].question)
    return "..."


def solve_hint(question: str, model: Path, job: Any) -> str:
    """A command that asks the trained model, with as many tokens as it was trained with, and with its tools."""
    sampling = getattr(next((strategy for strategy, _ in as_job(job).strategies()), None), "sampling", None)
    tokens = getattr(sampling, "max_tokens", DEFAULT_ANSWER_TOKENS)
    more = "" if tokens == DEFAULT_ANSWER_TOKENS else f" --max-tokens {tokens}"
    if tools := [tool for tool in getattr(job, "tools", ()) if isinstance(tool, str)]:
        more += f" --tools {shlex.quote(','.join(tools))}"
    return f"ponder solve {shlex.quote(question)} --model {shlex.quote(str(model))}{more}"


def format_steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def format_duration(seconds: float) -> str:
    """For people: 8 s, 6 min, 1 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _task_of(job: Any) -> Any:
    return getattr(job, "task", getattr(job, "data", None))
