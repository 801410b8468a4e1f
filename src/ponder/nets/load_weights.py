"""Builds a decoder from stored tensors, one at a time, so that the model is never in memory twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ponder.errors import ModelError
from ponder.memory_check import free_memory
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder
from ponder.nets.gpu_share import free_gpu_memory
from ponder.nets.nonfinite_tensors import all_finite
from ponder.nets.rope import frequencies
from ponder.nets.tensor_parallel import DecoderShard, Shard, check_shard_count, own_part
from ponder.nets.weight_files import StoredTensors

DecoderT = TypeVar("DecoderT", bound=Decoder)


class _SkipInit(TorchFunctionMode):
    """Skips the initialisation of modules: even on the meta device, it would import torch's compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments = dict(kwargs or {})
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else arguments["tensor"]
        return func(*args, **arguments)


def build_decoder(
    config: DecoderConfig,
    tensors: Iterable[tuple[str, Tensor]],
    where: Path,
    dtype: torch.dtype | None,
    device: torch.device | str,
    kind: type[DecoderT] = Decoder,  # type: ignore[assignment]
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> DecoderT:
    """A decoder with these tensors. `dtype=None` keeps the stored dtype. `shapes`: of tensors that are not read yet;
    they are read only if the shapes fit."""
    if shapes is None:
        tensors = list(tensors)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors}
    net = _build_on_meta(config, shapes, where, kind)
    _check_shapes(net.config, shapes, _shapes_of(net), where)
    _check_free_memory(shapes, where, dtype, torch.device(device))
    _fill(net, tensors, where, dtype, device)
    return net


def build_shard(
    config: DecoderConfig, stored: StoredTensors, where: Path, dtype: torch.dtype, device: torch.device, shard: Shard
) -> DecoderShard:
    """One shard of a decoder. Of each stored tensor only its part is kept."""
    check_shard_count(config, shard.count)
    whole = _build_on_meta(config, stored.shapes, where, Decoder)
    _check_shapes(config, stored.shapes, _shapes_of(whole), where)
    with torch.device("meta"), _SkipInit():
        net = DecoderShard(config, shard)
    _check_free_memory(_shapes_of(net), where, dtype, device)
    own = ((name, own_part(config, shard, name, tensor)) for name, tensor in stored.tensors)
    _fill(net, ((name, tensor.contiguous()) for name, tensor in own if tensor is not None), where, dtype, device)
    return net


def empty_decoder(config: DecoderConfig, dtype: torch.dtype, device: torch.device, shard: Shard | None) -> Decoder:
    """A decoder, or one shard of it, with memory for its weights and nothing in it: never whole on the host."""
    with torch.device("meta"), _SkipInit():
        net = Decoder(config) if shard is None else DecoderShard(config, shard)
    net = net.to(dtype).to_empty(device=device)
    if net.config.tied_embeddings:
        net.lm_head.weight = net.embed_tokens.weight
    return net.requires_grad_(False)


def _fill(
    net: Decoder,
    tensors: Iterable[tuple[str, Tensor]],
    where: Path,
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> None:
    on_gpu = torch.device(device).type == "cuda"
    for name, stored in tensors:
        if net.config.tied_embeddings and name == "lm_head.weight":
            continue  # some files hold the embedding twice
        tensor = stored.to(device) if on_gpu else stored  # as it is stored: a GPU reads it faster
        if not all_finite(tensor):
            raise ModelError(f"{name} in {where} holds numbers that are not finite; download the model again")
        owner, leaf = name.rpartition(".")[::2]
        setattr(net.get_submodule(owner), leaf, nn.Parameter(tensor.to(device=device, dtype=dtype)))
    if net.config.tied_embeddings:
        net.lm_head.weight = net.embed_tokens.weight


def _shapes_of(net: Decoder) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in net.named_parameters()}  # a tied head is listed as the embedding


def _build_on_meta(
    config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], where: Path, kind: type[DecoderT]
) -> DecoderT:
    """The module without its weights. Refused if the configuration is far larger than the stored tensors."""
    stored = sum(math.prod(shape) for shape in shapes.values())
    if config.layers > len(shapes) or config.parameter_count > 8 * stored + (1 << 20):
        raise ModelError(
            f"the configuration in {where} is of a model with {config.layers:,} layers and {config.parameter_count:,} "
            f"weights, but {len(shapes):,} tensors with {stored:,} weights are there; download both again"
        )
    try:
        with np.errstate(all="ignore"):
            turns = [frequencies(r, config.head_dim, config.context) for r in (config.rope, config.local_rope) if r]
        if not all(bool(freqs.isfinite().all()) and math.isfinite(factor) for freqs, factor in turns):
            raise ValueError("they give no finite numbers")
        with torch.device("meta"), _SkipInit():  # shapes without memory
            return kind(config)
    except (ArithmeticError, ValueError, TypeError, LookupError, RuntimeError) as reason:
        invalid_part = "rope settings" if "turns" not in locals() or "finite" in str(reason) else "sizes"
        raise ModelError(f"the {invalid_part} in {where} make no sense ({reason!s:.200}); download it again") from None


def _check_shapes(
    config: DecoderConfig,
    shapes: Mapping[str, tuple[int, ...]],
    expected_shapes: dict[str, tuple[int, ...]],
    where: Path,
) -> None:
    for name, shape in shapes.items():
        if config.tied_embeddings and name == "lm_head.weight":
            continue
        if name not in expected_shapes:
            raise ModelError(f"{where} holds {name:.200}, which no {config.family} model of its configuration has")
        if expected_shapes[name] != shape:
            raise ModelError(
                f"{name} in {where} has shape {shape}, but the configuration says {expected_shapes[name]}: "
                "they belong to different models; download both again"
            )
    if names := sorted(expected_shapes.keys() - shapes.keys()):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise ModelError(f"{where} lacks the tensors {', '.join(names[:3])}{more}; download the model again")


def _check_free_memory(
    shapes: Mapping[str, tuple[int, ...]], where: Path, dtype: torch.dtype | None, device: torch.device
) -> None:
    """Refuse weights that do not fit in the memory of their device: those of a GPU pass the host's one by one. In their
    stored dtype they stay on disk."""
    need = sum(math.prod(shape) for shape in shapes.values()) * (0 if dtype is None else dtype.itemsize)
    if need <= 1 << 30:  # the check costs more than it saves
        return
    on_gpu = device.type == "cuda"
    if need > (free := free_gpu_memory(device) if on_gpu else free_memory()):
        kind = "GPU memory" if on_gpu else "memory"
        raise ModelError(f"{where} takes {need / 1e9:,.0f} GB of {kind}, and {free / 1e9:,.1f} GB are free")
