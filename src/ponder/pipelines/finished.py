"""Training that is done: known from its run directory, without its model, and without data that may be gone."""

from __future__ import annotations

import json
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
    from ponder.pipelines.weights import weights_of

    try:
        same = pinned(job, folder)
        with Run(folder, same, weights_of(same)):
            return newest / "model" if _same_data(job, newest) else None
    except PonderError:
        return None


def _same_data(job: Any, checkpoint: Path) -> bool:
    """Whether the data are those that were learned from, or gone, or were never looked at as a whole."""
    try:
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        began = state["state"]["memory"].get("data")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    if began is None:
        return True
    given = (job.data,) if isinstance(job.data, str) else job.data
    return not all(Path(path).exists() for path in given) or (hasattr(job, "data_mark") and job.data_mark() == began)
