"""Training that is done: known from its run directory, without its model, and without data that may be gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ponder.errors import PonderError
from ponder.runs import Run, newest_checkpoint
from ponder.runs.cleanup import TRAINING_FIELDS, checkpoint_step


def finished_model(job: Any, folder: Path) -> Path | None:
    """The folder of a model that this very job has trained to the end, for whoever need not have it loaded.

    None where the job has more to do or to say, as that this is another run, or that its data changed.
    """
    newest = newest_checkpoint(folder)
    if not all(hasattr(job, name) for name in TRAINING_FIELDS) or newest is None or checkpoint_step(newest) < job.steps:
        return None
    from ponder.models.load import pin_job_models  # not where nothing was trained: it imports torch
    from ponder.pipelines.job.input_fingerprints import input_fingerprints

    try:
        same = pin_job_models(job, folder)
        with Run(folder, same, input_fingerprints(same)):
            return newest / "model"
    except PonderError:
        return None
