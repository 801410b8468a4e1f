"""Open the run directory of a job: pin the models that it names, and fingerprint everything that it depends on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ponder import rank_env
from ponder.models.model_fingerprints import pin_guide
from ponder.models.model_paths import pin_checkpoint
from ponder.pipelines.job.check_inputs import check_inputs
from ponder.pipelines.job.extend_training import extend_training
from ponder.pipelines.job.input_fingerprints import input_fingerprints
from ponder.pipelines.job.one_process import require_one_process
from ponder.runs import Run, read_job
from ponder.runs.cleanup import is_training_job
from ponder.runs.follower_run import FollowerRun

JobType = TypeVar("JobType")


def open_run(job: JobType, folder: str | Path, inputs_of: JobType | None = None) -> tuple[JobType, Run]:
    """The job with its models pinned, and its run, which the caller enters.

    A job with a method `continue_from` may resume the run of another job (see `Run`), training a run of fewer
    steps. `inputs_of`: the part of the job whose inputs must not change; None: all of it. Of several ranks only the
    first owns the directory.
    """
    require_one_process(job)
    pinned = pin_models(job, folder)
    if rank_env.rank():
        return pinned, FollowerRun(folder)
    check_inputs(pinned)
    inputs = input_fingerprints(pinned if inputs_of is None else pin_models(inputs_of, folder))
    extend = extend_training if is_training_job(pinned) else None
    return pinned, Run(folder, pinned, inputs, getattr(pinned, "continue_from", extend))


def pin_models(job: JobType, folder: str | Path) -> JobType:
    """The job with each run directory that it names as a model replaced by that run's newest checkpoint.

    A training job that resumes keeps the checkpoint that it began from, though its run has newer ones. The result of
    any other job would be of other weights than its run directory holds, so `Run` refuses it.
    """
    stored = read_job(folder) if is_training_job(job) and (Path(folder) / "job.json").is_file() else {}
    began = stored if isinstance(stored, dict) else {}
    pinned: dict[str, Any] = {}
    for name in ("model", "teacher"):
        if (model := getattr(job, name, None)) is not None:
            pinned[name] = pin_checkpoint(model, began.get(name))
    if solvers := getattr(job, "solvers", ()):
        pinned["solvers"] = tuple(map(pin_checkpoint, solvers))
    if guide := getattr(job, "guide", ""):
        pinned["guide"] = pin_guide(guide, folder)
    return replace(job, **pinned)  # type: ignore[type-var]
