"""Where a model's files are, by its name; and pinning a run's model to one checkpoint. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from ponder.errors import ModelError, UnknownName
from ponder.runs import newest_checkpoint

T = TypeVar("T")

TRANSFORMERS_PREFIX = "transformers:"  # before a folder: run by that library
VLLM_PREFIX = "vllm:"
OPENAI_PREFIX = "openai:"  # before a server's address


def _smollm2() -> Path:
    from ponder.models.smollm2 import ensure_converted  # converting needs torch

    return ensure_converted()


NAMED_MODELS: dict[str, Callable[[], Path]] = {"smollm2": _smollm2}


@overload
def pin_checkpoint(model: str, kept: Any = None) -> str: ...
@overload
def pin_checkpoint(model: str | T, kept: Any = None) -> str | T: ...
def pin_checkpoint(model: str | T, kept: Any = None) -> str | T:
    """Replace a run directory by its newest checkpoint, so that a job always means the same weights.

    `kept` is the checkpoint that was pinned when the job began. It stays if it belongs to the same run.
    """
    if not isinstance(model, str) or model in NAMED_MODELS or not (Path(model).expanduser() / "job.json").exists():
        return model
    here = Path(model).expanduser()
    return kept if isinstance(kept, str) and Path(kept).is_relative_to(here) else str(find_model(model))


def find_model(model: str) -> Path:
    """The folder or GGUF file that a model's name stands for."""
    if model in NAMED_MODELS:
        return NAMED_MODELS[model]()
    path = Path(model).expanduser()
    if (path / "job.json").exists():
        newest = newest_checkpoint(path)
        if newest is None:
            raise ModelError(f"the run {model} has no checkpoint yet: let it train on, or give another model")
        return newest / "model"
    if path.exists():
        if path.is_file() and path.suffix != ".gguf":
            raise ModelError(f"{model} is a file but not a .gguf: give a GGUF file, a model folder or a run directory")
        return path
    if path.parent.parent.name == "checkpoints":
        raise ModelError(
            f"{model} is gone: its run went on and has newer checkpoints; export a model, and train from that"
        )
    raise UnknownName("model", model, NAMED_MODELS, "Or give a Hugging Face folder, a .gguf file or a run directory.")
