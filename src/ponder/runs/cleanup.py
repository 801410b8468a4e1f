"""Whether a run directory holds a result. One without a result can be removed, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ponder import rank_env
from ponder.atomic_write import TEMPORARY_SUFFIX
from ponder.errors import Interrupted, RunError
from ponder.runs.data_files import FILTER_REPORT_FILE
from ponder.runs.metric_writers import WRITER_FOLDERS
from ponder.runs.picture_store import PICTURES_FOLDER
from ponder.runs.run_dir import checkpoints, lock_run, read_job, read_metrics
from ponder.runs.status import STATUS_FILE
from ponder.runs.token_texts import TOKEN_TEXTS_FILE
from ponder.runs.trace_store import TRACE_FILES, has_solved_trace

_RUN_FILES = ("job.json", "environment.json", "lock")
PASSED_CHECKS_FILE = "passed_checks.json"  # pipelines/preflight/passed_checks.py
_DESCRIPTION_FILES = (*_RUN_FILES, FILTER_REPORT_FILE, STATUS_FILE, TOKEN_TEXTS_FILE, PASSED_CHECKS_FILE)
_METADATA_FILES = {
    *_DESCRIPTION_FILES,
    *(f"{name}{TEMPORARY_SUFFIX}" for name in _DESCRIPTION_FILES),
}  # they describe the work and are no result
_TRAINING_FIELDS = ("steps", "save_every", "keep_checkpoints")
_RECORD_NAMES = {"metrics.jsonl", *TRACE_FILES, *WRITER_FOLDERS, PICTURES_FOLDER, "checkpoints"}


def is_training_job(job: Any) -> bool:
    """Whether a job, or an encoded one, takes steps and writes checkpoints."""
    if isinstance(job, Mapping):
        return all(name in job for name in _TRAINING_FIELDS)
    return all(hasattr(job, name) for name in _TRAINING_FIELDS)


def without_steps(encoded: Mapping[str, Any]) -> dict[str, Any]:
    """An encoded training job without its number of steps: what stays the same when a run gets more of them. A learning
    rate that decays to the last step depends on their number."""
    optimizer = encoded.get("optimizer")
    if isinstance(optimizer, Mapping) and optimizer.get("cosine") and not optimizer.get("decay_steps"):
        return dict(encoded)
    return {name: value for name, value in encoded.items() if name != "steps"}


def has_result(folder: Path) -> bool:
    """Whether a trace did not fail, or there is a checkpoint to resume from: unsaved training is repeated anyway.
    A run of stages has a result if one of its stages has."""
    if not (folder / "job.json").is_file():
        return False
    others = [path for path in folder.iterdir() if path.name not in _METADATA_FILES | _RECORD_NAMES]
    if any(has_result(path) if (path / "job.json").is_file() else True for path in others):
        return True
    if any(checkpoint_step(path) for path in checkpoints(folder)):
        return True
    if is_training_job(read_job(folder)):
        return False
    return has_solved_trace(folder) or bool(read_metrics(folder))


def has_no_output(folder: Path) -> bool:
    """Whether a run, and each of its stages, holds nothing but files that describe the work."""
    inside = [path for path in folder.iterdir() if path.name not in _METADATA_FILES]
    return (folder / "job.json").is_file() and all(path.is_dir() and has_no_output(path) for path in inside)


def checkpoint_step(checkpoint: Path) -> int:
    """The number of training steps up to this checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


@contextmanager
def remove_failed_start(folder: Path) -> Iterator[None]:
    """A job that fails before its first step leaves no run directory that would refuse the corrected job."""
    new = not (folder / "job.json").exists() and not rank_env.rank()
    with remove_empty_folders(folder.parent):
        try:
            yield
        except Interrupted:
            raise
        except Exception:
            if new and folder.is_dir() and has_no_output(folder):
                remove_empty_run(folder)
            raise


@contextmanager
def remove_empty_folders(folder: Path) -> Iterator[None]:
    """Where the block fails, the folder and those above it that were not there before are removed if they are empty."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except Exception:
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise


def remove_empty_run(folder: Path) -> None:
    """Remove a run that has no result, so that another can begin in its place."""
    if not (folder / "job.json").is_file() or has_result(folder):
        return
    with lock_run(folder):
        try:
            for path in folder.iterdir():
                if path.name not in _RUN_FILES:  # the last to go: by them the folder is known as a run
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.rmtree(folder)
        except OSError as why:
            raise RunError(f"cannot remove {folder}, in which no result is: {why.strerror}") from None
