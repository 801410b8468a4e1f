"""A decoder's tensors as the CUDA graphs use them. They stay the learner's own tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ponder.nets.decoder import Decoder

QUANTIZED_DTYPES = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}  # dtype and its largest number


@dataclass(slots=True)
class FusedLinear:
    """A matrix [out, in] and bias; if quantized, also the matrix in one byte per entry, and the scale of each row."""

    weight: Tensor
    bias: Tensor | None
    quantized: Tensor | None = None
    scale: Tensor | None = None

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
        for block in net.layers:
            own, mlp = block.self_attn, block.mlp
            self.layers.append(
                FusedLayer(
                    block,
                    _merge_linears([own.q_proj, own.k_proj, own.v_proj]),
                    FusedLinear(own.o_proj.weight, own.o_proj.bias),
                    _merge_linears([mlp.gate_proj, mlp.up_proj]),
                    FusedLinear(mlp.down_proj.weight, mlp.down_proj.bias),
                    own.window or 0,
                    1 if c.local_rope is not None and own.window is not None else 0,
                )
            )
        self.embedding, self.head, self.norm = net.embed_tokens.weight, net.lm_head.weight, net.norm.weight
        self.addresses = parameter_addresses(net)
        at, half = torch.arange(c.context + more, device=net.device), c.head_dim // 2
        self.rope_tables = []
        for freqs, factor in net.rope_frequencies:
            cos, sin = net.rope_cos_sin(at, freqs, factor, net.dtype)
            self.rope_tables.append((cos[:, 0, :half].contiguous(), sin[:, 0, :half].contiguous()))
        self.requantize()

    @torch.no_grad()
    def requantize(self) -> None:
        """The decoder's weights have changed: round the quantized copies again."""
        if self.quantization:
            for layer in self.layers:
                for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                    linear.quantize(self.quantization)


def parameter_addresses(net: Decoder) -> list[int]:
    return [p.data_ptr() for p in net.parameters()]


def _merge_linears(layers: list[Any]) -> FusedLinear:
    """Merge several linear layers into one matrix (and bias), of which theirs become views."""

    def merge(parts: list[nn.Parameter]) -> Tensor:
        rows = [p.shape[0] for p in parts]
        offsets = [sum(rows[:i]) * parts[0].stride(0) for i in range(len(rows))]
        storages = {p.untyped_storage().data_ptr() for p in parts}
        if len(storages) == 1 and [p.storage_offset() for p in parts] == offsets:  # merged before
            return torch.as_strided(parts[0].data, (sum(rows), *parts[0].shape[1:]), parts[0].stride())
        whole = torch.cat([p.data for p in parts])
        for p, part in zip(parts, whole.split(rows), strict=True):
            p.data = part
        return whole

    bias = merge([layer.bias for layer in layers]) if layers[0].bias is not None else None
    return FusedLinear(merge([layer.weight for layer in layers]), bias)
