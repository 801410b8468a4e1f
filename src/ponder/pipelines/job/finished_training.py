"""Finished training, known from its run directory alone: without loading the model, or data that may be gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ponder.errors import PonderError
from ponder.runs import newest_checkpoint
from ponder.runs.cleanup import checkpoint_step, is_training_job


def finished_model(job: Any, folder: Path) -> Path | None:
    """The folder of the model, if this very job has trained it to the end.

    None if the job has steps left, or an error to report: the run belongs to another job, or its data changed.
    """
    newest = newest_checkpoint(folder)
    if not is_training_job(job) or newest is None or checkpoint_step(newest) < job.steps:
        return None
    from ponder.pipelines.job.open_run import open_run  # torch: imported only where something was trained

    try:
        _, run = open_run(job, folder)
        with run:
            return newest / "model"
    except PonderError:
        return None
