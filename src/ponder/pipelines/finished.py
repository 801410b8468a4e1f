"""Training that is done: known from its run directory, without its model, and without data that may be gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ponder.errors import PonderError
from ponder.pipelines.begun import TRAINING, steps_of
from ponder.runs import Run, newest_checkpoint


def finished(job: Any, folder: Path) -> Path | None:
    """The folder of a model that this very job has trained to the end, for whoever need not have it loaded.

    None where the job has more to do or to say, as that this is another run, or that its data changed.
    """
    newest = newest_checkpoint(folder)
    if not all(hasattr(job, name) for name in TRAINING) or newest is None or steps_of(newest) < job.steps:
        return None
    from ponder.models.load import pinned  # not where nothing was trained: it imports torch
    from ponder.pipelines.inputs import inputs_of

    try:
        same = pinned(job, folder)
        with Run(folder, same, inputs_of(same)):
            return newest / "model"
    except PonderError:
        return None
