"""The operations between a layer's matrix products on a CPU: compiled (cpu_layer_ops.c), or without a compiler torch's.

Shapes: T tokens, E width, H query heads, K key heads, D head size, M width of the MLP.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.engine.attention_plan import AttentionPlan, inline_segments
from ponder.engine.kv_cache import KVCache
from ponder.engine.torch_attention import DecodeAttention, tail_columns
from ponder.nets import rope
from ponder.nets.rms_norm import RMSNorm


class LayerOps(Protocol):
    """`Attention` modules and norms are those of nets.decoder; rotary is `Decoder.rope_cos_sin`'s pair."""

    def add_norm(self, x_TE: Tensor, more_TE: Tensor | None, norm: RMSNorm) -> Tensor:
        """Add `more_TE` to `x_TE` in place, and return the norm of the sum."""
        ...

    def rotate(self, heads_TND: Tensor, attention: Any, rotary: Any) -> None:
        """Norm and rotate queries and keys in place; N = H + 2 K heads, the last K of which are values."""
        ...

    def prepare_rotary(self, rotary: tuple[Tensor, Tensor]) -> Any:
        """The angles as `rotate` takes them."""
        ...

    def gate(self, both: Tensor, gelu: bool) -> Tensor:
        """[T, M] from gate and up, [T, 2 M]."""
        ...


class TorchOps:
    def add_norm(self, x_TE: Tensor, more_TE: Tensor | None, norm: RMSNorm) -> Tensor:
        normed: Tensor = norm(x_TE if more_TE is None else x_TE.add_(more_TE))
        return normed

    def prepare_rotary(self, rotary: tuple[Tensor, Tensor]) -> Any:
        return rotary

    def rotate(self, heads_TND: Tensor, attention: Any, rotary: Any) -> None:
        h, k = attention.heads, attention.kv_heads
        if attention.qk_norm:
            heads_TND[:, :h] = attention.q_norm(heads_TND[:, :h])
            heads_TND[:, h : h + k] = attention.k_norm(heads_TND[:, h : h + k])
        heads_TND[:, : h + k] = rope.rotate(heads_TND[:, : h + k], *rotary)

    def gate(self, both: Tensor, gelu: bool) -> Tensor:
        gate, up = both.chunk(2, -1)
        return (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)).mul_(up)


class CompiledOps:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def add_norm(self, x_TE: Tensor, more_TE: Tensor | None, norm: RMSNorm) -> Tensor:
        out, (rows, width) = torch.empty_like(x_TE), x_TE.shape
        more = None if more_TE is None else more_TE.data_ptr()
        self.library.add_norm(
            x_TE.data_ptr(), more, norm.weight.data_ptr(), out.data_ptr(), rows, width, norm.eps,
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def prepare_rotary(self, rotary: tuple[Tensor, Tensor]) -> Any:
        """Of the first half of a head: the second has the same angles."""
        cos, sin = (x[:, 0, : x.shape[-1] // 2].float().contiguous() for x in rotary)
        return cos, sin

    def rotate(self, heads_TND: Tensor, attention: Any, rotary: Any) -> None:
        (rows, heads, size), (cos, sin) = heads_TND.shape, rotary
        norms = [attention.q_norm.weight.data_ptr(), attention.k_norm.weight.data_ptr()] if attention.qk_norm else []
        self.library.rotate(
            heads_TND.data_ptr(), heads * size, cos.data_ptr(), sin.data_ptr(), *(norms or (None, None)), rows,
            attention.heads + attention.kv_heads, attention.heads, size,
            attention.q_norm.eps if norms else 0.0, torch.get_num_threads(),
        )  # fmt: skip

    def gate(self, both: Tensor, gelu: bool) -> Tensor:
        rows, width = len(both), both.shape[1] // 2
        out = both.new_empty(rows, width)
        threads = torch.get_num_threads()
        self.library.gate_and_multiply(both.data_ptr(), out.data_ptr(), rows, width, int(gelu), threads)
        return out


class CompiledAttention(DecodeAttention):
    """Attention of one new token per row by compiled code, which reads keys and values where they are in the cache."""

    def __init__(self, cache: KVCache, plan: AttentionPlan, library: ctypes.CDLL) -> None:
        inline_segments(plan, lambda _: False)
        self.cache, self.library, self.shared = cache, library, []
        self.lengths = np.asarray([len(tail) for tail in plan.tails], np.int64)
        self.table_BL = np.zeros((len(plan.tails), tail_columns(int(self.lengths.max()))), np.int32)
        for row, tail in zip(self.table_BL, plan.tails, strict=True):
            row[: len(tail)] = tail
        self._update_positions()

    def grow(self, slots: np.ndarray) -> None:
        room = self.table_BL.shape[1]
        if self.lengths.max() + 1 > room:
            self.table_BL = np.pad(self.table_BL, ((0, 0), (0, tail_columns(room) - room)))
        self.table_BL[np.arange(len(slots)), self.lengths] = slots
        self.lengths = self.lengths + 1
        self._update_positions()

    def keep_rows(self, rows: np.ndarray) -> None:
        self.lengths, self.table_BL = self.lengths[rows], self.table_BL[rows]

    def _update_positions(self) -> None:
        self.positions_T = self.cache.to_device(self.lengths - 1)

    def score_room(self) -> int:
        """Numbers that a thread needs for scores."""
        return 4 * int(self.lengths.max())

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        kv, (rows, heads, size), kv_heads = self.cache.kv[layer], q_THD.shape, k_TKD.shape[1]
        parts = [x if x.stride()[1:] == (size, 1) else x.contiguous() for x in (q_THD, k_TKD, v_TKD)]
        out, threads = q_THD.new_empty(rows, heads, size), torch.get_num_threads()
        room = self.score_room()
        scratch = np.empty(threads * room, np.float32)
        self.library.attend(
            *(number for x in parts for number in (x.data_ptr(), x.stride(0))), kv.data_ptr(), kv.shape[2],
            self.table_BL.ctypes.data, self.table_BL.shape[1], self.lengths.ctypes.data, rows, heads, kv_heads, size,
            scale, window or 0, out.data_ptr(), scratch.ctypes.data, room, threads,
        )  # fmt: skip
        return out
