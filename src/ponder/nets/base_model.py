"""`base.json` of a model folder: the model that an adapter was trained on, in place of the merged weights.

    checkpoints/step-000020/
        model/    config.json, tokenizer, base.json; weights only of a head, if there is one
        adapter/  the adapter, as peft saves it

`merged_tensors.py` reads such a folder as the merged model. The base is known by the fingerprint of its weights, so
that an adapter is never merged into others. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ponder.errors import ModelError, PonderError
from ponder.nets import model_files, weight_files
from ponder.runs.file_fingerprints import files_fingerprint
from ponder.strict_parsing import parse_json

BASE_FILE = "base.json"
ADAPTER_FOLDER = "adapter"  # beside the model's folder
DTYPES = ("float64", "float32", "float16", "bfloat16")
MAX_PATH_CHARS = 4096
MAX_BASE_BYTES = 1 << 16  # of base.json


@dataclass(frozen=True, slots=True)
class BaseModel:
    """`name`: the model as the job names it. `dtype`: of the weights in training, and so of the merged model."""

    name: str
    path: str
    fingerprint: str
    dtype: str

    @classmethod
    def at(cls, name: str, path: Path, dtype: str) -> BaseModel:
        """The base in this folder or GGUF file, as it is now."""
        path = path.expanduser().absolute()
        return cls(name, str(path), weights_fingerprint(path), dtype)

    def write(self, folder: Path) -> None:
        (folder / BASE_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


FindBase = Callable[[BaseModel], Path]  # where a base is now


def stored_path(base: BaseModel) -> Path:
    """Where the base was when the adapter was trained."""
    return Path(base.path)


def has_base(folder: Path) -> bool:
    """Whether the model in this folder is an adapter on a base."""
    return folder.is_dir() and model_files.path_inside(folder, BASE_FILE).is_file()


def read_base(folder: Path) -> BaseModel:
    """The base that a folder names. The file may come from a stranger."""
    path = model_files.path_inside(folder, BASE_FILE)
    try:
        raw: Any = parse_json(model_files.read_text(path, MAX_BASE_BYTES))
        base = BaseModel(**raw)
    except (ValueError, TypeError, RecursionError) as reason:
        raise ModelError(f"{path} is damaged ({reason!s:.200}); copy the run again") from None
    if wrong := [f.name for f in fields(base) if not isinstance(getattr(base, f.name), str)]:
        raise ModelError(f"{path} is damaged ({wrong[0]} is not text); copy the run again")
    if base.dtype not in DTYPES or not re.fullmatch(r"[0-9a-f]{1,64}", base.fingerprint):
        raise ModelError(f"{path} is damaged (no dtype or fingerprint of a model); copy the run again")
    too_long = max(len(base.path), len(base.name)) > MAX_PATH_CHARS
    if too_long or "\0" in base.path + base.name or not Path(base.path).is_absolute():
        raise ModelError(f"{path} is damaged (the base's path is not an absolute path); copy the run again")
    return base


def locate_base(folder: Path, find_base: FindBase = stored_path) -> tuple[BaseModel, Path]:
    """The base of the model in `folder` and where it is now, with the weights that the adapter was trained on."""
    base = read_base(folder)
    try:
        path = _find(folder, base, find_base)
        _check_base(folder, base, path)
    except OSError as why:
        raise ModelError(f"cannot read the base model of {folder} at {base.path}: {why.strerror}") from None
    return base, path


def _find(folder: Path, base: BaseModel, find_base: FindBase) -> Path:
    try:
        return find_base(base)
    except PonderError as reason:
        raise _missing_base(folder, base, str(reason)) from None


def _check_base(folder: Path, base: BaseModel, path: Path) -> None:
    if not path.is_dir() and not (path.is_file() and path.suffix == ".gguf"):
        raise _missing_base(folder, base, "there is no such model folder or GGUF file")
    if has_base(path):
        raise ModelError(f"{folder} has the base model {path}, which has no weights of its own; copy the run again")
    if weights_fingerprint(path) != base.fingerprint:
        raise ModelError(
            f"{path} has other weights than when the adapter beside {folder} was trained on it: put the base model "
            f"{base.name} back as it was"
        )


def _missing_base(folder: Path, base: BaseModel, reason: str) -> ModelError:
    return ModelError(
        f"{folder} is an adapter, and its base model {base.name:.200} is not found ({reason:.500}): put it back at "
        f"{base.path}, or run `ponder export` where it still is, which writes a model that needs no base"
    )


def refuse_base(folder: Path, library: str) -> None:
    """Refuse a folder that a library cannot load, since the weights are elsewhere."""
    if has_base(folder):
        raise ModelError(
            f"{folder} is an adapter on {read_base(folder).name:.200}, without weights of its own for {library}: write "
            f"the merged model with `ponder export {folder} OUT`, and give OUT"
        )


def weights_fingerprint(path: Path) -> str:
    """The fingerprint of a model's weight files. Of large files it is cached, so that it is cheap the second time."""
    return files_fingerprint([path] if path.is_file() else weight_files.weight_files(path))
