"""A job in its run directory: run it, show how it goes, say what came out."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ponder import rank_env
from ponder.cli import command_line
from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.progress import ProgressTracker, print_json, progress_display
from ponder.cli.rank_launcher import run_ranks
from ponder.cluster.job_cluster import on_cluster
from ponder.cluster.job_place import open_place
from ponder.cluster.process_host import end_with_launcher
from ponder.errors import RunError, UsageError
from ponder.garbage_collector import ignore_imported_objects
from ponder.pipelines.job.base_job import as_job
from ponder.pipelines.job.one_process import runs_over_ranks
from ponder.pipelines.job.progress_lines import resume_progress

if TYPE_CHECKING:
    from ponder.protocols import Job
    from ponder.reason.budget import Budget


EXIT_UNMEASURED = 3  # the exit code of an evaluation of which too many problems have no verdict


class JobLaunch(NamedTuple):
    """A job and where to run it: what a command builds from its flags, for `run_job` or `ponder plan`."""

    job: Any
    folder: Path
    json: bool
    no_resume: bool = False
    log_to: str = ""
    ranks: int = 1
    cluster: str = ""


def run_job(
    job: Any,
    folder: Path,
    json: bool,
    no_resume: bool = False,
    log_to: str = "",
    ranks: int = 1,
    cluster: str = "",
) -> int:
    with on_cluster(cluster):
        if cluster and not rank_env.is_placed():
            if runs_over_ranks(job):
                return run_on_cluster(job, folder, ranks)
            if not getattr(job, "replicas", 0) and not getattr(job, "verifier_workers", 0):
                raise UsageError(
                    f"{type(job).__name__} has no processes to place on a cluster: give --replicas or"
                    " --verifier-workers, or leave it out"
                )
        return _run_job(job, folder, json, no_resume, log_to, ranks)


def run_on_cluster(job: Any, folder: Path, ranks: int) -> int:
    """Start the job's processes on the cluster, with this command line, and wait for them."""
    from ponder.cli.cluster_ranks import run_cluster_ranks

    place = open_place(folder.name)
    assert place is not None
    try:
        return run_cluster_ranks(ranks, command_line.get(), place, folder, place.has_gpus and job.device != "cpu")
    finally:
        place.close()


def _run_job(job: Any, folder: Path, json: bool, no_resume: bool, log_to: str, ranks: int) -> int:
    if ranks != 1 and rank_env.world_size() == 1 and not rank_env.is_placed():
        if not runs_over_ranks(job):
            raise UsageError(f"{type(job).__name__} runs in one process: leave out --ranks")
        return run_ranks(ranks, command_line.get(), job.device, folder)
    end_with_launcher()
    if rank_env.rank():
        return follow_job(job, folder)
    if no_resume and (folder / "job.json").exists():
        raise RunError(
            f"{folder} holds a run already, which --no-resume leaves alone: give another --run, or remove it"
        )
    from ponder.models.model_fingerprints import download_models
    from ponder.pipelines.job.extend_training import extension_hint
    from ponder.pipelines.job.finished_training import finished_model
    from ponder.runs.cleanup import remove_failed_start
    from ponder.runs.metric_logging import log_metrics_to
    from ponder.runs.prior_results import PriorResults

    described = as_job(job)
    warn_ineffective_job(described)
    before = PriorResults.read(folder)
    with log_metrics_to(*filter(None, log_to.split(","))), GracefulStop() as stop:
        stop.acknowledged = rank_env.world_size() > 1  # ranks stop together, between two steps
        download_models(job)  # its progress bar and a live panel would overwrite each other
        with job_progress(job, folder, stop, json) as progress:
            with remove_failed_start(folder):
                trained = finished_model(job, folder)
                ignore_imported_objects()
                result = trained or job(folder, progress)
    if json:
        print_json({"event": "done", "run": str(folder), **described.summary_json(folder, result), **before.to_json()})
    else:
        if trained is not None:
            print(f"finished  all {described.total} steps were done before; {extension_hint(job, folder)}")
        summary = described.summary_lines(folder, result)
        look = f"{'look':<{_label_width(summary)}}ponder view {shlex.quote(str(folder))}"
        print("\n".join([*before.lines(), *summary, look]))
    return EXIT_UNMEASURED if is_unmeasured(result) else 0


def _label_width(summary: Sequence[str]) -> int:
    """Where the values of a summary begin: those of trainings and of evaluations are laid out differently."""
    labels = (re.match(r"run +", line) for line in reversed(summary))
    return next((len(found[0]) for found in labels if found), len("run       "))


def follow_job(job: Any, folder: Path) -> int:
    """Take part in a job whose run directory rank 0 owns, in silence."""
    from ponder.pipelines.job.finished_training import finished_model

    with GracefulStop() as stop:
        stop.quiet = stop.acknowledged = True
        if finished_model(job, folder) is None:
            job(folder, ProgressTracker("", stop))
    return 0


def is_unmeasured(result: Any) -> bool:
    """Whether an evaluation, or one among stages, left so many problems without a verdict that it measured nothing."""
    if isinstance(result, dict):
        return any(map(is_unmeasured, result.values()))
    return bool(getattr(result, "unmeasured", ""))


def warn_ineffective_job(job: Job) -> None:
    """Say which settings of a job's strategies cannot do what they say."""
    for strategy, budget in job.strategies():
        warn_ineffective_strategy(strategy, budget)


def warn_ineffective_strategy(strategy: Any, budget: Budget | None) -> None:
    from ponder.reason.ineffective_settings import ineffective_settings

    for line in ineffective_settings(strategy, budget):
        print(f"  ! {line}", file=sys.stderr, flush=True)


def job_progress(job: Any, folder: Path, stop: GracefulStop, json: bool, title: str = "") -> ProgressTracker:
    """Progress of a job; a run that goes on shows its earlier steps too."""
    described = as_job(job)
    progress = progress_display(title or ("" if json else described.title), stop, folder, described.unit, json)
    resume_progress(progress, described, folder)
    return progress
