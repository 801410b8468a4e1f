"""Where a model's files are, by its name; and pinning a run's model to one checkpoint. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from ponder.errors import ModelError, UnknownName, UsageError
from ponder.hub import RepoName
from ponder.models import hub_models
from ponder.nets.base_model import BaseModel, has_base, locate_base, refuse_base
from ponder.runs import newest_checkpoint
from ponder.validate import short_repr

T = TypeVar("T")

TRANSFORMERS_PREFIX = "transformers:"  # before a folder: run by that library
VLLM_PREFIX = "vllm:"
OPENAI_PREFIX = "openai:"  # before a server's address
OTHER_NAMES = "Or give a Hugging Face folder, a .gguf file, a run directory or a model of the Hugging Face hub."


def _smollm2() -> Path:
    from ponder.models.smollm2 import ensure_converted  # converting needs torch

    return ensure_converted()


NAMED_MODELS: dict[str, Callable[[], Path]] = {"smollm2": _smollm2}


@overload
def pin_checkpoint(model: str, stored: Any = None) -> str: ...
@overload
def pin_checkpoint(model: str | T, stored: Any = None) -> str | T: ...
def pin_checkpoint(model: str | T, stored: Any = None) -> str | T:
    """Replace a run directory by its newest checkpoint, and a hub model's name by its name at one commit, so that a job
    always means the same weights.

    `kept` is what was pinned when the job began. It stays if it belongs to the same run or repository.
    """
    if not isinstance(model, str) or model in NAMED_MODELS:
        return model
    prefix, name = split_library_prefix(model)
    here = Path(name).expanduser()
    if is_hub_name(name):
        old = stored.removeprefix(prefix) if isinstance(stored, str) else None
        pinned = old if old and hub_models.is_same_repo(name, old) else hub_models.pin_hub_model(name, find_model(name))
        return prefix + pinned
    if prefix or not (here / "job.json").exists():
        return model
    return stored if isinstance(stored, str) and Path(stored).is_relative_to(here) else str(find_model(model))


def split_library_prefix(model: str) -> tuple[str, str]:
    """`transformers:` or `vllm:` before a name, or nothing, and the name."""
    prefix = next((p for p in (TRANSFORMERS_PREFIX, VLLM_PREFIX) if model.startswith(p)), "")
    return prefix, model.removeprefix(prefix)


def is_hub_name(model: str) -> bool:
    """Whether a name is neither ponder's own nor a local path's, and has the form of a hub model's."""
    if model in NAMED_MODELS or Path(model).expanduser().exists():
        return False
    return RepoName.parse(model) is not None and not _is_checkpoint(Path(model)) and not _is_missing_run(model)


def find_model(model: str, weights: bool = True) -> Path:
    """The folder or GGUF file that a model's name stands for. A model of the Hugging Face hub is downloaded if it is
    not in the local cache; without `weights`, only its tokenizer."""
    if not isinstance(model, str):
        raise UsageError(f"the model is {short_repr(model)}; it must be a name, a folder or a run directory")
    if not model:
        raise UsageError("the model's name is empty: give a name, a folder or a run directory")
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
    if _is_checkpoint(path):
        raise ModelError(
            f"{model} is gone: its run went on and has newer checkpoints; export a model, and train from that"
        )
    if _is_missing_run(model):
        raise ModelError(f"there is no run directory {model}: `ponder runs` lists those that are here")
    folder = hub_models.find_hub_model(model, list(NAMED_MODELS), OTHER_NAMES, weights)
    if folder is None:
        raise UnknownName("model", model, NAMED_MODELS, OTHER_NAMES)
    return folder


def find_base(base: BaseModel) -> Path:
    """Where the base model of an adapter is: where it was in training, else where its name leads now. A model of the
    hub is downloaded only at the commit that the adapter was trained on."""
    path = Path(base.path)
    repo = RepoName.parse(base.name)
    by_name = base.name in NAMED_MODELS or Path(base.name).expanduser().exists() or (repo and repo.is_pinned)
    return path if path.exists() or not by_name else find_model(base.name)


def check_model(model: str) -> None:
    """Raise if a model cannot be found, or is an adapter whose base cannot be, or one that its library cannot load."""
    prefix, name = split_library_prefix(model)
    path = find_model(name)
    if has_base(path) and prefix:
        refuse_base(path, prefix.removesuffix(":"))
    elif has_base(path):
        locate_base(path, find_base)


def is_checkpoint_model(path: Path) -> bool:
    """Whether a model is part of a run's checkpoint, which the run removes when it goes on."""
    return _is_checkpoint(path.absolute())


def _is_missing_run(model: str) -> bool:
    """Whether a name is that of a run that does not exist: nobody on the hub is called `runs`."""
    return Path(model).parts[:1] == ("runs",)


def _is_checkpoint(path: Path) -> bool:
    return path.parent.parent.name == "checkpoints"
