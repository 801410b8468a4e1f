"""Reads an adapter on a base model as the merged model: W + scale B A in float32, rounded to the dtype of training.

The tensors are those that `lora.merged_weights` gives for the network that was trained. They are merged one at a time,
while they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ponder.errors import ModelError
from ponder.nets import gguf, lora, model_files, weight_files
from ponder.nets.base_model import ADAPTER_FOLDER, FindBase, locate_base
from ponder.nets.weight_files import StoredTensors

DTYPE_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def open_merged(folder: Path, find_base: FindBase) -> StoredTensors:
    """The merged model of a folder with `base.json`. Tensors in the folder's own weight files (a head) come before the
    base's."""
    base, path = locate_base(folder, find_base)
    stored, own = _open_base(path), _own_tensors(folder)
    adapter = folder.resolve().with_name(ADAPTER_FOLDER)
    if adapter.is_symlink():
        raise ModelError(f"{adapter} is a symbolic link: replace it by a copy")
    factors, scale = lora.read_factors(adapter, _matrices(stored.shapes))
    dtype = getattr(torch, base.dtype)
    shapes = {**stored.shapes, **{name: tuple(tensor.shape) for name, tensor in own.items()}}
    return StoredTensors(shapes, frozenset({DTYPE_NAMES[dtype]}), _merge(stored, factors, scale, own, dtype))


def _merge(
    stored: StoredTensors,
    factors: Mapping[str, tuple[Tensor, Tensor]],
    scale: float,
    own: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in stored.tensors:
        if name in own:
            continue
        weight, pair = tensor.to(dtype), factors.get(name.removesuffix(".weight"))
        yield name, weight if pair is None else lora.merge(weight, *pair, scale)
    yield from own.items()


def _open_base(path: Path) -> StoredTensors:
    if path.is_dir():
        return weight_files.open_tensors(path, weight_files.read_config(path))
    return gguf.open_tensors(gguf.open_gguf(path))


def _own_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights that are not the base's: of a value or reward model's head."""
    if not model_files.path_inside(folder, weight_files.WEIGHTS_FILE).is_file():
        return {}
    return dict(weight_files.read_tensors(weight_files.tensor_entries(folder, multimodal=False)))


def _matrices(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of the linear layers, by the layer's name."""
    return {name.removesuffix(".weight"): shape for name, shape in shapes.items() if len(shape) == 2}
