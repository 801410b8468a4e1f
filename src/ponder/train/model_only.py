"""Checkpoints of a finished stage keep their models alone.

A recipe takes no more steps of a stage that is finished, so nothing reads its optimizer states and float32 weights
again: of SmolLM2's checkpoint they are five parts in six.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ponder.atomic_write import write_atomically
from ponder.runs import checkpoints, manifest
from ponder.runs.manifest import MANIFEST_FILE, ManifestMismatch
from ponder.train.checkpoint import MODEL_ONLY, is_tensors_file


def keep_models_alone(run: Path) -> None:
    """Remove from each checkpoint what only further steps would need. Stopped anywhere, it leaves whole checkpoints."""
    for folder in checkpoints(run):
        try:
            about = manifest.read(folder)
        except ManifestMismatch:  # who reads it says so
            continue
        files = {name: entry for name, entry in about["files"].items() if not is_tensors_file(name)}
        with suppress(OSError):  # a full disk, or one that may not be written: the next resume tries again
            if len(files) < len(about["files"]):
                text = manifest.to_checked_json({**about, "files": files, MODEL_ONLY: True})
                write_atomically(folder / MANIFEST_FILE, text, sync=True)
            for path in folder.iterdir():
                if is_tensors_file(path.name):
                    path.unlink()
