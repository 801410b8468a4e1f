"""The key-value cache of a decoding batch: one row per sequence, as long as the longest.

Shapes: B rows, L cache length, K key heads, D head size, H query heads, T tokens of a prefill.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.nets.attention import Packed
from ponder.nets.config import DecoderConfig

_GROW = 64  # the cache is lengthened in steps, not at every token


class Prefill:
    """Packed attention that also keeps what it saw: keys and values of each layer, [T, K, D]."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.packed = Packed(lengths, [-1] * len(lengths), device)
        self.kv: list[tuple[Tensor, Tensor]] = []

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        self.kv.append((k_TKD, v_TKD))
        return self.packed(layer, q_THD, k_TKD, v_TKD, scale=scale, window=window)


class Rows:
    """Sequences in flight. As an `Attend`, takes one new token per row."""

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        empty = (2, 0, config.kv_heads, 0, config.head_dim)
        self.kv = [torch.empty(empty, device=device, dtype=dtype) for _ in range(config.layers)]
        self.lengths_B = torch.empty(0, dtype=torch.long, device=device)  # tokens in the cache, per row

    def __len__(self) -> int:
        return len(self.lengths_B)

    def add(self, prefill: Prefill, lengths: Sequence[int], copies: Sequence[int]) -> None:
        """Append rows: prompt i of the prefill, `copies[i]` times."""
        old, new = len(self), sum(copies)
        capacity = max(self.kv[0].shape[3], _rounded(max(lengths) + 1))
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        for layer, (k_TKD, v_TKD) in enumerate(prefill.kv):
            grown = self.kv[layer].new_zeros(2, old + new, k_TKD.shape[1], capacity, k_TKD.shape[2])
            grown[:, :old, :, : self.kv[layer].shape[3]] = self.kv[layer]
            row = old
            for i, n in enumerate(copies):
                a, b = starts[i], starts[i + 1]
                grown[0, row : row + n, :, : b - a] = k_TKD[a:b].transpose(0, 1)
                grown[1, row : row + n, :, : b - a] = v_TKD[a:b].transpose(0, 1)
                row += n
            self.kv[layer] = grown
        fresh = torch.tensor(list(lengths), device=self.lengths_B.device)
        self.lengths_B = torch.cat([self.lengths_B, fresh.repeat_interleave(fresh.new_tensor(list(copies)))])

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows, and cache length that no row needs any more."""
        self.lengths_B = self.lengths_B[rows]
        capacity = _rounded(int(self.lengths_B.max()) + 1) if len(rows) else 0
        for layer, kv in enumerate(self.kv):  # one at a time: two whole caches need not fit in memory
            self.kv[layer] = kv[:, rows, :, :capacity]

    def advance(self) -> None:
        """Make room for one more token per row; call before each forward pass."""
        longest = int(self.lengths_B.max()) + 1
        if longest > self.kv[0].shape[3]:
            more = _rounded(longest) - self.kv[0].shape[3]
            for layer, kv in enumerate(self.kv):
                self.kv[layer] = F.pad(kv, (0, 0, 0, more))
        self._longest = longest
        self._index = torch.arange(len(self), device=self.lengths_B.device)
        back_BL = self.lengths_B[:, None] - torch.arange(longest, device=self.lengths_B.device)
        self._back = back_BL[:, None, None, :]

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        kv = self.kv[layer]
        kv[0, self._index, :, self.lengths_B] = k_TKD
        kv[1, self._index, :, self.lengths_B] = v_TKD
        keys, values = kv[:, :, :, : self._longest]
        seen = self._back >= 0 if window is None else (self._back >= 0) & (self._back < window)
        rows, heads, size = q_THD.shape
        q = q_THD.view(rows, keys.shape[1], -1, size)  # query heads that share a key head are its queries
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, scale=scale).reshape(rows, heads, size)


def _rounded(length: int) -> int:
    return -(-length // _GROW) * _GROW
