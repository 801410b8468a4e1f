"""A smaller model cut out of a trained one: whole layers and neurons of the MLPs are left out.

Layers go by block influence (ShortGPT, Men et al. 2024, arXiv:2403.03853): 1 - cos(input, output) of a block, its mean
over tokens. Neurons go by the size of their activations (Minitron, Muralidharan et al. 2024, arXiv:2407.14679). Both
are measured in one pass over given texts. What is left computes worse than before until it has been trained again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.errors import UsageError
from ponder.nets.decoder import Decoder
from ponder.nets.load_weights import build_decoder
from ponder.nets.tree_attention import make_tree_attention
from ponder.types import Ids

BATCH_TOKENS = 4096  # in a pass that measures
LayerRule = Literal["influence", "even"]
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_ROWS = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.gate_proj.bias", "mlp.up_proj.bias")  # a row is a neuron
_COLUMNS = "mlp.down_proj.weight"


@dataclass(frozen=True)
class BlockStatistics:
    """What each layer did to some texts."""

    influence: list[float]  # of each layer: 1 - cos(input, output), mean over tokens
    neurons: list[Tensor]  # of each layer, importance [mlp_width]: |activation|, mean over a text, L2 over the texts


def measure_blocks(net: Decoder, texts: Sequence[Ids]) -> BlockStatistics:
    """Influence and importances of all layers on these token sequences, several at a time."""
    layers = net.config.layers
    cosines, tokens = torch.zeros(layers, dtype=torch.float64), 0
    lengths: list[int] = []  # of the texts in the pass
    squares = [torch.zeros(net.config.mlp_width, dtype=torch.float64) for _ in range(layers)]

    def add_cosine(layer: int, x_TE: Tensor, out_TE: Tensor) -> None:
        cosines[layer] += F.cosine_similarity(x_TE.float(), out_TE.float(), dim=-1).double().sum().cpu()

    def add_activation(layer: int, x_TM: Tensor) -> None:
        means = [text.float().abs().mean(0) for text in x_TM.split(lengths)]
        squares[layer] += torch.stack(means).double().square().sum(0).cpu()

    with ExitStack() as hooks, torch.inference_mode():
        for i, block in enumerate(net.layers):
            assert isinstance(block, torch.nn.Module)
            down: Any = block.mlp.down_proj  # type: ignore[union-attr]
            of_block = block.register_forward_hook(lambda _, x, out, i=i: add_cosine(i, x[0], out))
            of_mlp = down.register_forward_pre_hook(lambda _, x, i=i: add_activation(i, x[0]))
            hooks.callback(of_block.remove)
            hooks.callback(of_mlp.remove)
        for batch in _batches([text for text in texts if len(text)]):
            lengths, roots = [len(text) for text in batch], [-1] * len(batch)
            local = net.local_ids(torch.as_tensor(np.concatenate(batch), dtype=torch.long, device=net.device))
            attend = make_tree_attention(lengths, roots, net.config, net.device, net.dtype)
            net(local, net.tree_positions(local, attend.positions_T, lengths, roots), attend)
            tokens += sum(lengths)
    if not tokens:
        raise UsageError("there is no text to measure layers on")
    return BlockStatistics((1 - cosines / tokens).tolist(), [s.sqrt() for s in squares])


def _batches(texts: Sequence[Ids]) -> Iterator[list[Ids]]:
    """Texts in order, at most BATCH_TOKENS tokens in a batch or one text."""
    batch: list[Ids] = []
    for text in texts:
        if batch and sum(map(len, batch)) + len(text) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def choose_layers(influence: Sequence[float], count: int, rule: LayerRule = "influence") -> list[int]:
    """The layers to keep, in order: those of the largest influence; or evenly spaced ones with the first and last."""
    if not 1 <= count <= len(influence):
        raise UsageError(f"of {len(influence)} layers, {count} cannot be kept")
    if rule == "even":
        last = len(influence) - 1
        return [round(i * last / max(1, count - 1)) for i in range(count)]
    ranked = sorted(range(len(influence)), key=lambda i: (-influence[i], i))
    return sorted(ranked[:count])


def choose_neurons(importance_M: Tensor, count: int) -> Tensor:
    """The indices of the most important neurons, in order."""
    if not 1 <= count <= len(importance_M):
        raise UsageError(f"of {len(importance_M)} neurons of an MLP, {count} cannot be kept")
    return torch.sort(torch.sort(importance_M, descending=True, stable=True).indices[:count]).values


def prune(net: Decoder, layers: Sequence[int], neurons: Sequence[Tensor] | None = None) -> Decoder:
    """A new decoder with these layers alone, and these neurons of each of them; it shares no weights."""
    c = net.config
    config = replace(
        c,
        layers=len(layers),
        windows=tuple(c.windows[i] for i in layers),
        mlp_width=c.mlp_width if neurons is None else len(neurons[0]),
    )
    tensors = list(_pruned_tensors(net, list(layers), neurons))
    return build_decoder(config, tensors, Path("the pruned model"), net.dtype, net.device)


def _pruned_tensors(net: Decoder, layers: list[int], neurons: Sequence[Tensor] | None) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in net.named_parameters():
        tensor, own = parameter.detach(), _LAYER.fullmatch(name)
        if own is None:
            yield name, tensor.clone()
            continue
        if int(own[1]) not in layers:
            continue
        place = layers.index(int(own[1]))
        if neurons is not None and own[2] in (*_ROWS, _COLUMNS):
            chosen = neurons[place].to(tensor.device)
            tensor = tensor.index_select(1 if own[2] == _COLUMNS else 0, chosen)
        yield f"layers.{place}.{own[2]}", tensor.clone()
