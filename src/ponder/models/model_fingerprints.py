"""Fingerprints of the models that a job names. Paths are not enough: a model may be trained again in its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ponder.errors import PonderError
from ponder.models.guides import parse_reward_model
from ponder.models.model_paths import OPENAI_PREFIX, find_model, is_hub_name, pin_checkpoint, split_library_prefix
from ponder.nets.base_model import ADAPTER_FOLDER, BASE_FILE, has_base, read_base, weights_fingerprint
from ponder.nets.hf import REFERENCE_FOLDER
from ponder.runs import job_json, read_job
from ponder.runs.encoded_walk import walk
from ponder.runs.file_fingerprints import add_fingerprints, files_fingerprint
from ponder.runs.manifest import MANIFEST_FILE

MODEL_FIELDS = ("model", "teacher", "solvers")  # fields that name models
MODEL_FILE_GLOBS = {  # of a model's folder
    "weights": (
        *("*.safetensors", "*.gguf", "*.bin", "config.json", BASE_FILE, "*.py"),
        f"{REFERENCE_FOLDER}/*.safetensors",
    ),
    "tokenizer or chat template": ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"),
}


def model_fingerprints(job: Any) -> dict[str, str]:
    """The fingerprints of each model that exists, by the kind of file and the field that names the model."""
    marks: dict[str, str] = {}
    for where, name in model_references(job_json.encode(job)):
        if (path := _model_path(name)) is not None:
            by_name = {
                f"the {kind} of {where} ({_path_tail(name)})": model_fingerprint(path, kind)
                for kind in MODEL_FILE_GLOBS
            }
            add_fingerprints(marks, {called: mark for called, mark in by_name.items() if mark})
    return marks


def download_models(job: Any) -> None:
    """Download the models of the Hugging Face hub that a job names and the local cache does not have."""
    named = [getattr(job, field, None) or () for field in MODEL_FIELDS]
    named.append(parse_reward_model(getattr(job, "guide", None) or "")[1])
    for model in (m for names in named for m in (names if isinstance(names, tuple) else (names,))):
        if isinstance(model, str) and is_hub_name(name := split_library_prefix(model)[1]):
            find_model(name)


def pin_guide(guide: str, folder: str | Path) -> str:
    """Replace a learned guide's run by its newest checkpoint. A run that began without pinning continues without it."""
    kind, rest = parse_reward_model(guide)
    if not kind:
        return guide
    if (Path(folder) / "job.json").is_file():
        began = read_job(folder)
        if isinstance(began, dict) and began.get("guide") == guide:
            return guide
    return f"{kind}:{pin_checkpoint(rest)}"


def model_fingerprint(path: Path, kind: str = "weights") -> str:
    """The fingerprint of a model's folder, or of its GGUF file; empty if it has no file of that kind."""
    if path.is_file():
        return files_fingerprint([path]) if kind == "weights" else ""
    by_kind = {
        of: {file for glob in globs for file in path.glob(glob) if _is_model_file(file)}
        for of, globs in MODEL_FILE_GLOBS.items()
    }
    files = by_kind[kind] if kind == "weights" else by_kind[kind] - by_kind["weights"]
    if kind == "weights" and has_base(path):
        return _merged_fingerprint(path, files)
    return files_fingerprint(sorted(files)) if files else ""


def _merged_fingerprint(path: Path, files: set[Path]) -> str:
    """The fingerprint of an adapter and of its base as it is now, wherever that is."""
    base = read_base(path)
    adapter = set(filter(_is_model_file, path.resolve().with_name(ADAPTER_FOLDER).glob("adapter*")))
    base_path = Path(base.path)
    now = weights_fingerprint(base_path) if base_path.exists() else base.fingerprint
    return f"{files_fingerprint(sorted(files - {path / BASE_FILE} | adapter))} {now} {base.dtype}"


def model_references(data: Any) -> Iterator[tuple[str, str]]:
    """The models and reward models that an encoded job names, with their fields."""
    for where, value in walk(data):
        if isinstance(value, str) and value:
            if reward_model := parse_reward_model(value)[1]:
                yield where, reward_model
            elif where.rpartition(".")[2] in MODEL_FIELDS:
                yield where, value


def _path_tail(name: str) -> str:
    """The end of a path, which stays the same when a folder of stages is moved."""
    return name if re.match(r"[a-z]+:", name) else "/".join(Path(name).parts[-3:])


def _model_path(name: str) -> Path | None:
    """A model's path; for a server's model, its tokenizer's. None if there is no such file."""
    try:
        if name.startswith(OPENAI_PREFIX):
            folders = parse_qs(urlsplit(name.removeprefix(OPENAI_PREFIX)).query).get("tokenizer", [])
            return find_model(folders[0], weights=False) if folders else None
        return find_model(split_library_prefix(name)[1])
    except (PonderError, OSError):
        return None  # loading it will report what is wrong


def _is_model_file(file: Path) -> bool:
    """Not a manifest, which only lists the other files."""
    return file.is_file() and file.name != MANIFEST_FILE
