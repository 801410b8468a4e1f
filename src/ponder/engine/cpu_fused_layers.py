"""A runner for CPUs with packed weights and few operations a layer: queries, keys and values are one product, gate and
up another, and what lies between products is one pass each (cpu_layer_ops.py).

Shapes: T tokens, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.engine import cpu_packed_weights
from ponder.engine.attention_plan import AttentionPlan
from ponder.engine.cpu_layer_ops import CompiledAttention, CompiledOps, LayerOps, TorchOps
from ponder.engine.cpu_layer_stack import LayerStack
from ponder.engine.cpu_packed_weights import PackedMatrix, PackedWeightsRunner
from ponder.engine.cpu_panels import Panels
from ponder.engine.torch_attention import DecodeAttention, reads_segments_repeatedly
from ponder.nets import lora
from ponder.nets.cpu_kernels import load_kernels
from ponder.nets.decoder import AttentionFn, Decoder


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """One packed matrix of several layers, and their biases."""

    matrix: PackedMatrix
    bias: Tensor | None

    @classmethod
    def of(cls, *linears: Any) -> PackedLinear:
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        whole = linears[0].weight if len(linears) == 1 else torch.cat([linear.weight for linear in linears])
        return cls(cpu_packed_weights.pack(whole), bias)

    def __call__(self, x: Tensor) -> Tensor:
        return cpu_packed_weights.multiply(x, self.matrix, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLayer:
    block: Any
    qkv: PackedLinear
    out: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear


class FusedLayersRunner(PackedWeightsRunner):
    def __init__(self, net: Decoder, slots: int) -> None:
        super().__init__(net, slots)
        self._layers: list[PackedLayer] = []
        self._stack: LayerStack | None = None
        self._is_merged = True  # whether what is packed, or will be, are merged layers
        library = load_kernels("cpu_layer_ops.c", net.dtype)
        self._layer_library = library
        self._ops: LayerOps = TorchOps() if library is None else CompiledOps(library)

    def refresh_weights(self) -> None:
        super().refresh_weights()
        self._layers, self._stack = [], None

    def _make_attention(self, plan: AttentionPlan) -> DecodeAttention:
        if self._layer_library is None or reads_segments_repeatedly(plan, self.cache):
            return super()._make_attention(plan)
        return CompiledAttention(self.cache, plan, self._layer_library)

    def _pack_layers(self) -> dict[nn.Linear, PackedMatrix]:
        if not self._is_merged:
            return super()._pack_layers()
        layers, head = [_pack(block) for block in self.net.layers], self.net.lm_head
        packed = {head: cpu_packed_weights.pack(head.weight)}
        self._layers = layers
        if self._layer_library is not None and isinstance(packed[head], Panels):
            self._stack = LayerStack(self.net, layers, self.cache.kv)
        return packed

    def _hidden_states(
        self, tokens: np.ndarray, positions: Tensor, attend: Any, names: Sequence[str], sizes: Sequence[int]
    ) -> Tensor:
        # with adapters that can be asked for, every pass is the network's: rows without one keep their bits
        can_merge = is_supported(self.net) and not (self.adapters is not None and any(self.adapters))
        if can_merge != self._is_merged:
            self.refresh_weights()
            self._is_merged = can_merge
        if not can_merge or len(tokens) == 1:
            return super()._hidden_states(tokens, positions, attend, names, sizes)
        ids_T = self.cache.to_device(tokens)
        with self._with_adapters(names, sizes):
            if self._layers:
                return self._run_layers(ids_T, positions, attend)
            hidden_TE: Tensor = self.net(ids_T, positions, attend)
            return hidden_TE

    def _run_layers(self, ids_T: Tensor, positions_T: Tensor, attend: AttentionFn) -> Tensor:
        net, ops, c = self.net, self._ops, self.net.config
        x_TE = F.embedding(ids_T, net.embed_tokens.weight)
        rotary = ops.prepare_rotary(net.rope_cos_sin(positions_T, *net.rope_frequencies[0], x_TE.dtype))
        if self._stack is not None and isinstance(attend, CompiledAttention):
            return self._stack.run(x_TE, rotary, attend)
        first_key, first_value = c.heads, c.heads + c.kv_heads
        more_TE = None
        for layer in self._layers:
            own, block = layer.block.self_attn, layer.block
            heads = layer.qkv(ops.add_norm(x_TE, more_TE, block.input_layernorm)).view(len(x_TE), -1, c.head_dim)
            ops.rotate(heads, own, rotary)
            qkv = heads[:, :first_key], heads[:, first_key:first_value], heads[:, first_value:]
            mixed = attend(own.layer, *qkv, scale=own.scale, window=own.window)
            normed = ops.add_norm(x_TE, layer.out(mixed.flatten(1)), block.post_attention_layernorm)
            more_TE = layer.down(ops.gate(layer.gate_up(normed), block.mlp.gelu))
        return ops.add_norm(x_TE, more_TE, net.norm)


def is_supported(net: Decoder) -> bool:
    """Whether this network's layers can be merged: of the usual form, and without a trained adapter."""
    c = net.config
    return not c.gemma and c.vision is None and c.local_rope is None and not lora.has_adapter(net)


def _pack(block: Any) -> PackedLayer:
    own, mlp = block.self_attn, block.mlp
    return PackedLayer(
        block,
        PackedLinear.of(own.q_proj, own.k_proj, own.v_proj),
        PackedLinear.of(own.o_proj),
        PackedLinear.of(mlp.gate_proj, mlp.up_proj),
        PackedLinear.of(mlp.down_proj),
    )
