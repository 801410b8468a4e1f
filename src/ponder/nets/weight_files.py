"""Reads the files of a Hugging Face model folder: `config.json` and safetensors, in one file or in shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.errors import ModelError
from ponder.nets import model_files
from ponder.nets.model_files import TensorEntry
from ponder.runs import manifest

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_FILE, WEIGHTS_INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
# Multimodal files name their language model in one of three ways.
_TEXT_PREFIXES = ("model.text_model.", "model.language_model.", "language_model.model.", "language_model.")
TENSOR_NAME_PREFIXES = (*_TEXT_PREFIXES, "model.")


@dataclass(frozen=True)
class StoredTensors:
    """The tensors of a stored model by our names: shapes and dtypes are known before any is read."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: frozenset[str]  # safetensors' names
    tensors: Iterator[tuple[str, Tensor]]  # on the CPU


def read_config(folder: Path) -> Mapping[str, Any]:
    if not folder.is_dir():
        raise ModelError(f"no model folder at {folder}; check the path")
    path = model_files.path_inside(folder, "config.json")
    if not path.is_file():
        raise ModelError(f"{folder} has no config.json, so it is no Hugging Face model folder")
    manifest.verify(folder)
    return model_files.read_json(path)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the folder's weights."""
    if model_files.path_inside(folder, WEIGHTS_INDEX_FILE).is_file():
        where = model_files.read_json(folder / WEIGHTS_INDEX_FILE).get("weight_map")
        if not isinstance(where, dict) or not where or not all(isinstance(name, str) for name in where.values()):
            raise ModelError(
                f"{folder / WEIGHTS_INDEX_FILE} has no weight_map from tensors to files; download it again"
            )
        paths = [model_files.path_inside(folder, name) for name in sorted(set(where.values()))]
        for file in paths:
            if not file.is_file():
                raise ModelError(f"{folder} lacks {file.name:.200}, which {WEIGHTS_INDEX_FILE} names; download it")
        return paths
    if model_files.path_inside(folder, WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if pickles := sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt")) + sorted(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} holds its weights as a pickle ({pickles[0].name}), which can run code when it is opened; "
            "convert it to safetensors: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    raise ModelError(f"{folder} has no weights; expected {WEIGHTS_FILE}, or shards with {WEIGHTS_INDEX_FILE}")


def tensor_entries(folder: Path, multimodal: bool) -> dict[str, TensorEntry]:
    """The tensors that the folder's files declare, by our names, not their values. Duplicates and non-floats raise."""
    out: dict[str, TensorEntry] = {}
    for path in weight_files(folder):
        for entry in model_files.read_safetensors_header(path):
            name = next(
                (entry.name.removeprefix(p) for p in TENSOR_NAME_PREFIXES if entry.name.startswith(p)), entry.name
            )
            if name.endswith("rotary_emb.inv_freq"):
                continue  # a buffer in old files, computed here
            if multimodal and name.startswith(("vision_tower.", "multi_modal_projector.")):
                continue  # only text is read
            if entry.dtype not in model_files.FLOAT_DTYPE_BYTES:
                raise ModelError(
                    f"{entry.name:.200} in {path} is stored as {entry.dtype}; weights are floats of 16 bits or more"
                )
            if name in out:
                raise ModelError(f"{folder} holds {name:.200} twice; download the model again")
            out[name] = entry
    return out


def open_tensors(folder: Path, raw_config: Mapping[str, Any]) -> StoredTensors:
    """The tensors in a folder's own weight files."""
    if "quantization_config" in raw_config:
        raise ModelError(f"{folder} holds quantised weights; use the 'transformers:' policy, or unquantised weights")
    entries = tensor_entries(folder, multimodal="text_config" in raw_config)
    shapes = {name: entry.shape for name, entry in entries.items()}
    return StoredTensors(shapes, frozenset(e.dtype for e in entries.values()), read_tensors(entries))


def read_tensors(entries: Mapping[str, TensorEntry]) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    for path, group in groupby(entries.items(), key=lambda item: item[1].path):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name, entry in group:
                    yield name, file.get_tensor(entry.name)
        except (SafetensorError, OSError) as damage:
            raise ModelError(f"{path} is damaged or cut short ({damage}); download it again") from None
