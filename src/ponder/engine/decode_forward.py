"""A decoding step by the kernels of decode_kernels.py: five in each layer, instead of eight and more.

For networks whose products are so short that launching them and passing results on takes longer than computing. Others,
and passes with prefill or adapters of their own for each row, take the way of fused_forward.py.

Shapes as in triton_kernels.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ponder.engine.adapter_columns import MERGED, AdapterRows, PassAdapters
from ponder.engine.fused_weights import FusedLayer, FusedLinear, FusedWeights
from ponder.engine.graph_buffers import GraphBuffers
from ponder.nets.power_of_two import next_power_of_two

_T = TypeVar("_T")
LayerAttention = Callable[[int, FusedLayer, Tensor, Tensor], None]

MAX_WIDTH = 640  # of a residual stream: measured faster at 576 than cuBLAS's kernels and those between, slower at 1,024
MAX_ROWS = 256  # up to which they were measured faster; not at 1,024
PARTS = {256: 1, 384: 2, 1024: 4}  # of a step, by the largest number of rows: the fastest of 1, 2, 4 and 8
_LINE = 64  # entries of two bytes in a line of the second-level cache


class Tile(NamedTuple):
    """What one program computes: `m` rows and `n` outputs, from `k` inputs at a time."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    fetches: bool = False  # weights before the kernel before it has ended

    def constants(self) -> dict[str, int]:
        return {"M": self.m, "N": self.n, "K": self.k, "num_warps": self.warps, "num_stages": self.stages}


# Tiles of each product, by the largest number of rows that they serve.
TILES: dict[str, dict[int, Tile]] = {
    "qkv": {16: Tile(16, 16, 64, 4, 4), 64: Tile(64, 32, 64, 4, 4, True), 256: Tile(64, 32, 64, 4, 6),
            1024: Tile(128, 64, 64, 8, 3)},
    "out": {16: Tile(16, 16, 64, 4, 4), 64: Tile(64, 32, 64, 4, 4, True), 256: Tile(64, 32, 64, 4, 4, True),
            1024: Tile(64, 64, 64, 4, 4)},
    "gate_up": {16: Tile(16, 16, 64, 4, 4), 64: Tile(64, 32, 64, 4, 4, True), 256: Tile(64, 32, 64, 4, 4),
                1024: Tile(128, 128, 64, 8, 3)},
    "down": {16: Tile(16, 16, 128, 4, 4), 64: Tile(16, 32, 128, 4, 4), 256: Tile(64, 32, 64, 4, 6, True),
             1024: Tile(64, 64, 64, 4, 4)},
}  # fmt: skip


def tile_for(product: str, rows: int) -> Tile:
    return _for_rows(TILES[product], rows)


class AttentionTile(NamedTuple):
    """`keys` at a time; `fetched`: entries of keys and values by one prefetch while the kernel before runs, 0: none."""

    keys: int
    warps: int
    stages: int
    fetched: int


# For heads of 64 entries, by the largest number of rows.
ATTENTION_TILES = {
    64: AttentionTile(64, 2, 3, 32), 256: AttentionTile(32, 1, 3, 0), 1024: AttentionTile(128, 4, 3, 0)
}  # fmt: skip


SPLIT_ATTENTION_TILE = AttentionTile(128, 4, 3, 0)  # where several programs read a long tail


def attention_tile_for(head_dim: int, rows: int, split: bool) -> AttentionTile | None:
    if head_dim != 64:
        return None
    return SPLIT_ATTENTION_TILE if split else _for_rows(ATTENTION_TILES, rows)


def _for_rows(tiles: Mapping[int, _T], rows: int) -> _T:
    return next((tile for most, tile in tiles.items() if rows <= most), tiles[max(tiles)])


def is_supported(w: FusedWeights, rows: int, adapters: PassAdapters = None) -> bool:
    """Whether these kernels serve the network, and faster than others. PONDER_DECODE_KERNELS=0: they are not used; 1:
    for any number of rows."""
    return (rows <= MAX_ROWS or os.environ.get("PONDER_DECODE_KERNELS") == "1") and _serves(w, adapters)


def parts_for(w: FusedWeights, rows: int) -> int:
    """Into how many parts with the same number of rows a step is divided, which run at the same time: attention of
    one, which waits for memory, beside products of another, which do not fill the device."""
    parts = _for_rows(PARTS, rows)
    return parts if rows % parts == 0 and _serves(w, None) else 1


def _serves(w: FusedWeights, adapters: PassAdapters) -> bool:
    c, kind = w.config, w.embedding.dtype
    return (
        os.environ.get("PONDER_DECODE_KERNELS") != "0"
        and not c.gemma
        and c.width <= MAX_WIDTH
        and not isinstance(adapters, AdapterRows)
        and all(linear.scale is None and linear.dense is not None for linear in w.linears())
        and (not w.embedding.is_cuda or (kind in (torch.bfloat16, torch.float16) and _capability(w) >= 8))
    )


def overlaps_kernels(w: FusedWeights) -> bool:
    """Whether a kernel can be launched while the one before it runs."""
    from ponder.engine import triton_kernels as k

    return k.HAS_PDL and w.embedding.is_cuda and _capability(w) >= 9


def _capability(w: FusedWeights) -> int:
    return torch.cuda.get_device_capability(w.embedding.device)[0]


class _Product:
    """A matrix product of the step: its tile and grid, and what its kernel is compiled for."""

    def __init__(self, tile: Tile, rows: int, wide: int, width: int, pdl: bool) -> None:
        self.grid = (-(-width // tile.n), -(-rows // tile.m))
        self.parts = self.grid[0]  # of the sums of squares, if it writes them
        self.constants: dict[str, Any] = {
            **tile.constants(), **launch_options(pdl), "FETCH": pdl and tile.fetches, "WIDE": wide, "WIDTH": width,
            "LINES": next_power_of_two(-(-wide // _LINE)),
        }  # fmt: skip

    def parts_constant(self) -> int:
        """At least 32: few different ones are compiled."""
        return max(32, next_power_of_two(self.parts))


def launch_options(pdl: bool) -> dict[str, bool]:
    """`pdl`: the kernel is launched while the one before it runs, and waits for it by itself."""
    return {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}


class DecodeStep:
    """The kernels of one step of so many rows, and what they pass on."""

    def __init__(
        self, w: FusedWeights, b: GraphBuffers, rows: int, adapters: PassAdapters = None,
        tiles: Mapping[str, Tile] | None = None,
    ) -> None:  # fmt: skip
        c, new = w.config, w.embedding.new_empty
        self.weights, self.buffers, self.rows, self.adapters = w, b, rows, adapters
        self.tiles = {name: tile_for(name, rows) for name in TILES} | dict(tiles or {})
        self.pdl = overlaps_kernels(w)
        heads, mixed = (c.heads + 2 * c.kv_heads) * c.head_dim, c.heads * c.head_dim

        def product(name: str, wide: int, width: int) -> _Product:
            return _Product(self.tiles[name], rows, wide, width, self.pdl)

        self._qkv, self._out = product("qkv", c.width, heads), product("out", mixed, c.width)
        self._gate_up, self._down = product("gate_up", c.width, c.mlp_width), product("down", c.mlp_width, c.width)
        self.stream, self.scaled = new(rows, c.width), new(rows, c.width)
        self.qkv, self.mixed, self.gated = new(rows, heads), new(rows, mixed), new(rows, c.mlp_width)
        self.sums = new(rows, max(self._out.grid[0], self._down.grid[0]), dtype=torch.float32)

    def embed(self) -> None:
        """From `last_tokens` to the stream."""
        from ponder.engine import decode_kernels as k

        w, c = self.weights, self.weights.config
        k.embed_rows[(self.rows,)](
            self.buffers.last_tokens, w.embedding, w.layers[0].block.input_layernorm.weight, self.stream, self.scaled,
            self.sums, self.rows, self._down.parts,
            WIDE=c.width, E=next_power_of_two(c.width), P=self._down.parts_constant(), **launch_options(self.pdl),
        )  # fmt: skip

    def compute_qkv(self, layer: FusedLayer) -> None:
        from ponder.engine import decode_kernels as k

        weight, bias = self._weight(layer.qkv), layer.qkv.bias
        k.normed_linear[self._qkv.grid](
            self.scaled, self.sums, weight, weight if bias is None else bias, self.qkv, self.rows,
            self._down.parts, self.weights.config.norm_eps,
            BIAS=bias is not None, P=self._down.parts_constant(), **self._qkv.constants,
        )  # fmt: skip

    def add_attention(self, layer: FusedLayer) -> None:
        self._add_to_stream(self._out, self.mixed, layer.out, layer.block.post_attention_layernorm.weight)

    def compute_gated(self, layer: FusedLayer) -> None:
        from ponder.engine import decode_kernels as k

        weight, bias = self._weight(layer.gate_up), layer.gate_up.bias
        k.normed_gated_linear[self._gate_up.grid](
            self.scaled, self.sums, weight, weight if bias is None else bias, self.gated, self.rows,
            self._out.parts, self.weights.config.norm_eps,
            BIAS=bias is not None, GELU=layer.block.mlp.gelu, P=self._out.parts_constant(), **self._gate_up.constants,
        )  # fmt: skip

    def add_feedforward(self, layer: FusedLayer, next_norm_weight: Tensor) -> None:
        self._add_to_stream(self._down, self.gated, layer.down, next_norm_weight)

    def normalize_stream(self) -> Tensor:
        """The last norm, of which the head reads."""
        from ponder.engine import triton_kernels as k

        w, c = self.weights, self.weights.config
        k.add_norm[(self.rows,)](
            self.stream, self.stream, w.norm, self.scaled, c.width, c.norm_eps,
            ADD=False, GEMMA=False, E=next_power_of_two(c.width),
        )  # fmt: skip
        return self.scaled

    def _add_to_stream(self, product: _Product, x: Tensor, linear: FusedLinear, norm_weight: Tensor) -> None:
        from ponder.engine import decode_kernels as k

        weight = self._weight(linear)
        k.residual_linear[product.grid](
            x, weight, weight if linear.bias is None else linear.bias, self.stream, norm_weight, self.scaled, self.sums,
            self.rows, product.parts,
            BIAS=linear.bias is not None, **product.constants,
        )  # fmt: skip

    def _weight(self, linear: FusedLinear) -> Tensor:
        return linear.merged if self.adapters is MERGED and linear.merged is not None else linear.weight


def run_layers(step: DecodeStep, attend: LayerAttention) -> Tensor:
    """From `last_tokens` to the hidden states [B, E] after the last norm."""
    w = step.weights
    norms = [*(layer.block.input_layernorm.weight for layer in w.layers[1:]), w.norm]
    step.embed()
    for i, (layer, next_norm) in enumerate(zip(w.layers, norms, strict=True)):
        step.compute_qkv(layer)
        attend(i, layer, step.qkv, step.mixed)
        step.add_attention(layer)
        step.compute_gated(layer)
        step.add_feedforward(layer, next_norm)
    return step.normalize_stream()
