"""Stored tensors become a decoder, one at a time: the module is never held twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ponder.errors import ModelError
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder

Net = TypeVar("Net", bound=Decoder)


class _Unset(TorchFunctionMode):
    """Modules come without first values: drawing them, even on no device, loads all of torch's compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def fill(
    config: DecoderConfig,
    tensors: Iterable[tuple[str, Tensor]],
    where: Path,
    dtype: torch.dtype | None,
    device: torch.device | str,
    kind: type[Net] = Decoder,  # type: ignore[assignment]
) -> Net:
    """A decoder holding these tensors. `dtype=None` keeps each as it is stored."""
    with torch.device("meta"), _Unset():  # shapes without memory
        net = kind(config)
        config = net.config
    waiting = dict(net.named_parameters())  # a tied head stands here once, as the embedding
    for name, tensor in tensors:
        if config.tied and name == "lm_head.weight":
            continue  # some files hold the embedding twice
        if name not in waiting:
            raise ModelError(f"{where} holds {name}, which no {config.family} model of its configuration has")
        wanted, found = tuple(waiting.pop(name).shape), tuple(tensor.shape)
        if wanted != found:
            raise ModelError(
                f"{name} in {where} has shape {found}, but the configuration says {wanted}: "
                "they belong to different models; download both again"
            )
        owner, leaf = name.rpartition(".")[::2]
        setattr(net.get_submodule(owner), leaf, nn.Parameter(tensor.to(device=device, dtype=dtype)))
    if waiting:
        names = sorted(waiting)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise ModelError(f"{where} lacks the tensors {', '.join(names[:3])}{more}; download the model again")
    if config.tied:
        net.lm_head.weight = net.embed_tokens.weight
    return net
