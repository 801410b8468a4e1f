"""Checkpoints of a finished stage keep their models alone.

A recipe takes no more steps of a stage that is finished, so nothing reads its optimizer states and float32 weights
again: six bytes in seven of a checkpoint in bfloat16.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ponder.atomic_write import write_atomically
from ponder.runs import checkpoints, manifest
from ponder.runs.manifest import MANIFEST_FILE, MODEL_ONLY, ManifestMismatch
from ponder.runs.run_dir import lock_run
from ponder.train.checkpoint import is_tensors_file


def keep_models_alone(run: Path) -> None:
    """Remove from each checkpoint what only further steps would need. Stopped anywhere, it leaves whole checkpoints."""
    with lock_run(run):
        for folder in checkpoints(run):
            _keep_model_alone(folder)


def _keep_model_alone(folder: Path) -> None:
    try:
        about = manifest.read(folder)
    except ManifestMismatch:  # who reads it says so
        return
    files = {name: entry for name, entry in about["files"].items() if not is_tensors_file(name)}
    with suppress(OSError):  # a full disk, or one that may not be written: the next resume tries again
        if len(files) < len(about["files"]):
            text = manifest.to_checked_json({**about, "files": files, MODEL_ONLY: True})
            write_atomically(folder / MANIFEST_FILE, text, sync=True)
        for path in folder.iterdir():
            if is_tensors_file(path.name):
                path.unlink()
