"""More steps for a training run: the same job with another number of steps goes on from the newest checkpoint.

Nothing that a step computes depends on how many follow, unless the learning rate decays to the last step: such a run is
refused more of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ponder.errors import RunError
from ponder.runs import Run, newest_checkpoint
from ponder.runs.cleanup import checkpoint_step, without_steps
from ponder.runs.manifest import MODEL_ONLY, ManifestMismatch
from ponder.runs.manifest import read as read_manifest
from ponder.runs.run_dir import other_job_error


def extend_training(run: Run, stored: Any) -> None:
    """Raise unless the run's job is the stored one with another number of steps, none of which is done already."""
    if not isinstance(stored, Mapping) or without_steps(stored) != without_steps(run.job):
        raise other_job_error(run.folder, stored, run.job)
    newest = newest_checkpoint(run.folder)
    if newest is not None and run.job["steps"] < checkpoint_step(newest):
        done, steps = checkpoint_step(newest), run.job["steps"]
        raise RunError(
            f"{run.folder} has trained {done} steps, and --steps is {steps}: give as many or more, or another --run"
        )


def extension_hint(job: Any, folder: Path) -> str:
    """How a finished training goes on."""
    newest = newest_checkpoint(folder)
    with suppress(ManifestMismatch):
        if newest is not None and read_manifest(newest).get(MODEL_ONLY):
            return "it was a stage of a recipe, so another --run goes on from its model"
    optimizer = getattr(job, "optimizer", None)
    decays = getattr(optimizer, "decay_steps", 0) or getattr(optimizer, "cosine", False)
    return "another --run trains anew" if decays else "a larger --steps goes on from there"
