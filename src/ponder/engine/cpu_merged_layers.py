"""A runner for CPUs and networks so small that starting an operation takes longer than computing it.

Matrices with the same input are one, residuals are added inside of products, and queries and keys are rotated together:
about half as many operations a layer as in `nets.decoder`. The merged copies are made again when the weights change.

Shapes: T tokens, E width, H query heads, K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.engine.model_runner import ModelRunner
from ponder.nets import lora
from ponder.nets.decoder import AttentionFn, Decoder


@dataclass(frozen=True, slots=True)
class MergedLinear:
    """One matrix of several layers, inputs by outputs, and their biases."""

    matrix: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *linears: Any) -> MergedLinear:
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        return cls(torch.cat([linear.weight for linear in linears]).T.contiguous(), bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.matrix) if self.bias is None else torch.addmm(self.bias, x, self.matrix)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        added = torch.addmm(residual, x, self.matrix)
        return added if self.bias is None else added.add_(self.bias)


@dataclass(frozen=True, slots=True)
class MergedLayer:
    block: Any
    qkv: MergedLinear
    out: MergedLinear
    gate_up: MergedLinear
    down: MergedLinear
    qk_norm: Tensor | None  # [H + K, D]


class MergedLayersRunner(ModelRunner):
    def __init__(self, net: Decoder, slots: int) -> None:
        super().__init__(net, slots)
        self._layers: list[MergedLayer] | None = None  # empty: the network cannot be merged any more
        freqs, self._rope_factor = net.rope_frequencies[0]
        self._freqs_D = torch.cat([freqs, freqs]).float()
        half = len(freqs)
        self._signs_D = torch.cat([-torch.ones(half), torch.ones(half)])  # of the sines: halves are swapped, not turned

    def refresh_weights(self) -> None:
        super().refresh_weights()
        self._layers = None

    def _hidden_states(
        self, tokens: np.ndarray, positions: Tensor, attend: Any, names: Sequence[str], sizes: Sequence[int]
    ) -> Tensor:
        if self._layers is None:
            self._layers = [_merge(block) for block in self.net.layers] if is_supported(self.net) else []
        if not self._layers or (self.adapters is not None and any(self.adapters)):
            # with adapters that can be asked for, every pass is the network's: rows without one keep their bits
            return super()._hidden_states(tokens, positions, attend, names, sizes)
        return self._run_layers(self._layers, self.cache.to_device(tokens), positions, attend)

    def _run_layers(
        self, layers: Sequence[MergedLayer], ids_T: Tensor, positions_T: Tensor, attend: AttentionFn
    ) -> Tensor:
        c = self.net.config
        x_TE = F.embedding(ids_T, self.net.embed_tokens.weight)
        turn_T1D = (positions_T.float()[:, None] * self._freqs_D)[:, None]
        cos_T1D, sin_T1D = turn_T1D.cos(), turn_T1D.sin_().mul_(self._signs_D)
        if self._rope_factor != 1:
            cos_T1D, sin_T1D = cos_T1D * self._rope_factor, sin_T1D * self._rope_factor
        turned, half = c.heads + c.kv_heads, c.head_dim // 2
        for layer in layers:
            own, mlp = layer.block.self_attn, layer.block.mlp
            normed = _norm(x_TE, layer.block.input_layernorm)
            heads = layer.qkv(normed).view(len(x_TE), -1, c.head_dim)
            qk = heads[:, :turned]
            if layer.qk_norm is not None:
                qk = F.rms_norm(qk, (c.head_dim,), None, c.norm_eps) * layer.qk_norm
            swapped = torch.cat((qk[..., half:], qk[..., :half]), -1)
            qk = torch.addcmul(qk * cos_T1D, swapped, sin_T1D)
            mixed = attend(
                own.layer, qk[:, : c.heads], qk[:, c.heads :], heads[:, turned:], scale=own.scale, window=own.window
            )
            x_TE = layer.out.add_to(x_TE, mixed.flatten(1))
            gate, up = layer.gate_up(_norm(x_TE, layer.block.post_attention_layernorm)).chunk(2, -1)
            gate = F.gelu(gate, approximate="tanh") if mlp.gelu else F.silu(gate)
            x_TE = layer.down.add_to(x_TE, gate.mul_(up))
        return _norm(x_TE, self.net.norm)


def is_supported(net: Decoder) -> bool:
    """Whether this network's layers can be merged: float32, without a trained adapter, and of the usual form."""
    c = net.config
    is_usual = not c.gemma and c.vision is None and c.local_rope is None
    return is_usual and net.dtype == torch.float32 and not lora.has_adapter(net)


def _merge(block: Any) -> MergedLayer:
    own, mlp = block.self_attn, block.mlp
    norms = None
    if own.qk_norm:
        norms = torch.stack([own.q_norm.weight] * own.heads + [own.k_norm.weight] * own.kv_heads)
    return MergedLayer(
        block,
        MergedLinear.of(own.q_proj, own.k_proj, own.v_proj),
        MergedLinear.of(own.o_proj),
        MergedLinear.of(mlp.gate_proj, mlp.up_proj),
        MergedLinear.of(mlp.down_proj),
        norms,
    )


def _norm(x_TE: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x_TE, x_TE.shape[-1:], norm.weight, norm.eps)
