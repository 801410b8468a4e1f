"""A decoder's tensors as the CUDA graphs use them. They stay the learner's own tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ponder.nets.decoder import BANNED_LOGIT, Decoder
from ponder.nets.lora import base_layer
from ponder.nets.parameter_list import ParameterList
from ponder.nets.quantized_linear import QuantizedLinear

if TYPE_CHECKING:
    from ponder.engine.adapter_columns import LowRank

QUANTIZED_DTYPES = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}  # dtype and its largest number


@dataclass(slots=True)
class FusedLinear:
    """A matrix [out, in] and bias; if quantized, also the matrix in one byte per entry, and the scale of each row.

    `parts`: name and outputs of each layer in it. `bases`: the layers, where one is the base of a QLoRA adapter; then
    the matrix is computed anew for every product.
    """

    dense: Tensor | None
    bias: Tensor | None
    parts: Sequence[tuple[str, int]]
    inputs: int
    bases: Sequence[Any] = ()
    quantized: Tensor | None = None
    scale: Tensor | None = None
    low_rank: LowRank | None = None
    merged: Tensor | None = None  # the matrix with an adapter's update added

    @property
    def weight(self) -> Tensor:
        if self.dense is not None:
            return self.dense
        return torch.cat([base.weight for base in self.bases])

    def quantize(self, kind: str) -> None:
        """Round the matrix, into the same tensors as before if there are any."""
        dtype, largest = QUANTIZED_DTYPES[kind]
        scale = self.weight.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / largest
        small = self.weight.float() / scale
        small = (small.round() if kind == "int8" else small).to(dtype)
        if self.quantized is None or self.scale is None:
            self.quantized, self.scale = small, scale[:, 0].contiguous()
        else:
            self.quantized.copy_(small)
            self.scale.copy_(scale[:, 0])


@dataclass(slots=True)
class FusedLayer:
    block: Any
    qkv: FusedLinear
    out: FusedLinear
    gate_up: FusedLinear
    down: FusedLinear
    window: int  # 0: none
    rope_index: int  # which of the decoder's rope tables


class FusedWeights:
    """Matrices with the same input are merged. The decoder's parameters become views of the merged matrices, so the
    learner trains them in place. The rope tables cover `more` positions than the decoder's context."""

    @torch.inference_mode(False)  # tensors made in inference mode cannot be trained
    def __init__(self, net: Decoder, more: int, quantization: str = "") -> None:
        self.config, self.quantization = net.config, quantization
        c = net.config
        self.layers: list[FusedLayer] = []
        block: Any
        for i, block in enumerate(net.layers):
            own, mlp = block.self_attn, block.mlp
            attention, feedforward = f"layers.{i}.self_attn", f"layers.{i}.mlp"
            self.layers.append(
                FusedLayer(
                    block,
                    _merge_linears(attention, q_proj=own.q_proj, k_proj=own.k_proj, v_proj=own.v_proj),
                    _merge_linears(attention, o_proj=own.o_proj),
                    _merge_linears(feedforward, gate_proj=mlp.gate_proj, up_proj=mlp.up_proj),
                    _merge_linears(feedforward, down_proj=mlp.down_proj),
                    own.window or 0,
                    1 if c.local_rope is not None and own.window is not None else 0,
                )
            )
        self.embedding, self.head, self.norm = net.embed_tokens.weight, net.lm_head.weight, net.norm.weight
        self.embed_pictures = net.embed  # of prompts that show some: waits for the device, so no graph holds it
        self.banned_token = net.banned_token
        self._parameters = ParameterList(net)
        self._addresses = self._current_addresses()
        at, half = torch.arange(c.context + more, device=net.device), c.head_dim // 2
        self.rope_tables = []
        for freqs, factor in net.rope_frequencies:
            cos, sin = net.rope_cos_sin(at, freqs, factor, net.dtype)
            self.rope_tables.append((cos[:, 0, :half].contiguous(), sin[:, 0, :half].contiguous()))
        self.requantize()

    def are_in_place(self) -> bool:
        """Whether the decoder's weights are still where the graphs read them."""
        return self._addresses == self._current_addresses()

    def _current_addresses(self) -> list[int]:
        return [p.data_ptr() for p in self._parameters()]

    def ban_tokens(self, logits_BV: Tensor) -> None:
        """No row may sample a vocabulary's image token."""
        if self.banned_token is not None:
            logits_BV[:, self.banned_token].fill_(BANNED_LOGIT)

    @torch.no_grad()
    def requantize(self) -> None:
        """The decoder's weights have changed: round the quantized copies again."""
        if self.quantization:
            for linear in self.linears():
                linear.quantize(self.quantization)

    def linears(self) -> list[FusedLinear]:
        return [linear for layer in self.layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]


def _merge_linears(owner: str, **layers: Any) -> FusedLinear:
    """Merge several linear layers into one matrix (and bias), of which theirs become views. Adapters stay apart."""

    def merge(tensors: list[nn.Parameter]) -> Tensor:
        if len(tensors) == 1:
            return tensors[0]
        rows = [p.shape[0] for p in tensors]
        offsets = [sum(rows[:i]) * tensors[0].stride(0) for i in range(len(rows))]
        storages = {p.untyped_storage().data_ptr() for p in tensors}
        if len(storages) == 1 and [p.storage_offset() for p in tensors] == offsets:  # merged before
            return torch.as_strided(tensors[0].data, (sum(rows), *tensors[0].shape[1:]), tensors[0].stride())
        whole = torch.cat([p.data for p in tensors])
        for p, part in zip(tensors, whole.split(rows), strict=True):
            p.data = part
        return whole

    bases = [base_layer(layer) for layer in layers.values()]
    parts = [(f"{owner}.{name}", base.out_features) for name, base in zip(layers, bases, strict=True)]
    bias = merge([base.bias for base in bases]) if bases[0].bias is not None else None
    if any(isinstance(base, QuantizedLinear) for base in bases):
        return FusedLinear(None, bias, parts, bases[0].in_features, bases)
    return FusedLinear(merge([base.weight for base in bases]), bias, parts, bases[0].in_features)
