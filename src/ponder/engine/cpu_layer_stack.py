"""All layers of a decoding pass in one call of compiled code (nets/cpu_layers.c), where their matrices are panels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ponder.engine.cpu_layer_ops import CompiledAttention
from ponder.engine.cpu_panels import Panels, load_products
from ponder.engine.weight_pointers import KeptTensors, LinearPointers
from ponder.nets.decoder import Decoder


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, LinearPointers) for name in ("qkv", "out", "gate_up", "down")),
        ("kv", ctypes.c_void_p),
        ("window", ctypes.c_int64),
    ]


class _Network(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "layers", "width", "heads", "kv_heads", "head_size", "mlp_width", "slots", "gelu",
        )),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("norm", ctypes.c_void_p),
        ("layer", ctypes.c_void_p),
    ]  # fmt: skip


class LayerStack:
    """Of a network's packed layers (cpu_fused_layers.PackedLayer) and the keys and values of a cache."""

    def __init__(self, net: Decoder, layers: Sequence[Any], kv: Sequence[Tensor]) -> None:
        library = load_products(net.dtype)
        assert library is not None
        self._library, self._buffer = library, np.empty(0, np.float32)
        self._kept = KeptTensors([layers, kv])  # what the structures point to
        keep = self._kept.address

        def linear(packed: Any) -> LinearPointers:
            panels: Panels = packed.matrix
            return LinearPointers(panels.address, keep(packed.bias), panels.outputs)

        own = (_Layer * len(layers))()
        for i, layer in enumerate(layers):
            block, attention = layer.block, layer.block.self_attn
            own[i] = _Layer(
                keep(block.input_layernorm.weight), keep(block.post_attention_layernorm.weight),
                keep(attention.q_norm.weight if attention.qk_norm else None),
                keep(attention.k_norm.weight if attention.qk_norm else None),
                *map(linear, (layer.qkv, layer.out, layer.gate_up, layer.down)),
                kv[attention.layer].data_ptr(), attention.window or 0,
            )  # fmt: skip
        self._kept.append(own)
        c = net.config
        self._network = _Network(
            c.layers, c.width, c.heads, c.kv_heads, c.head_dim, c.mlp_width, kv[0].shape[2],
            int(c.activation == "gelu_tanh"), c.norm_eps, c.scale, keep(net.norm.weight), ctypes.addressof(own),
        )  # fmt: skip

    def run(self, x_TE: Tensor, rotary: tuple[Tensor, Tensor], attention: CompiledAttention) -> Tensor:
        """The norm of what comes out of the last layer; x is overwritten. `rotary` is CompiledOps.prepare_rotary's."""
        rows, threads, network = len(x_TE), torch.get_num_threads(), ctypes.byref(self._network)
        (cos, sin), out, room, count = rotary, torch.empty_like(x_TE), attention.score_room(), ctypes.c_int64()
        self._library.count_numbers(network, rows, room, threads, ctypes.byref(count))
        if count.value > len(self._buffer):
            self._buffer = np.empty(count.value, np.float32)
        self._library.run_layers(
            network, x_TE.data_ptr(), rows, cos.data_ptr(), sin.data_ptr(), attention.table_BL.ctypes.data,
            attention.table_BL.shape[1], attention.lengths.ctypes.data, room, self._buffer.ctypes.data, out.data_ptr(),
            threads,
        )  # fmt: skip
        return out
