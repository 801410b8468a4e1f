"""Attention over packed sequences that share prefixes. Shapes as in decoder.py; S segments.

A segment is a run of tokens with a parent segment: a prompt is a root, its completions are children, and
a searched tree is the same thing deeper. A token sees its own segment up to itself, and all its ancestors.
So a prompt is computed once for its whole group, and no token is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor


class Packed:
    """Attention over a forest of segments; `parents[s] < s`, or -1 for a root. Trees lie one after another."""

    def __init__(self, lengths: Sequence[int], parents: Sequence[int], device: torch.device | None = None) -> None:
        self.trees: list[tuple[int, int, Tensor]] = []  # first token, past the last, relation [t, t]
        self.device = device
        starts: list[int] = []  # first position of each segment
        for length, parent in zip(lengths, parents, strict=True):
            if not -1 <= parent < len(starts) or length < 1:
                raise ValueError(f"segment {len(starts)}: parent {parent}, length {length}")
            starts.append(0 if parent < 0 else starts[parent] + lengths[parent])
        where = [torch.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)]
        self.positions_T = torch.cat(where).to(device)
        roots = [s for s, p in enumerate(parents) if p < 0] + [len(parents)]
        first = 0
        for a, b in pairwise(roots):
            past = first + sum(lengths[a:b])
            self.trees.append((first, past, self._reach(lengths[a:b], [p - a for p in parents[a:b]], first, past)))
            first = past

    def _reach(self, lengths: Sequence[int], parents: Sequence[int], first: int, past: int) -> Tensor:
        """How many tokens back each key lies on each query's own path; negative where it is not on it."""
        count = len(lengths)
        above_SS = torch.eye(count, dtype=torch.bool)
        for s, p in enumerate(parents):
            if p >= 0:
                above_SS[s] |= above_SS[p]
        segment_t = torch.repeat_interleave(torch.arange(count), torch.tensor(lengths)).to(self.device)
        positions_t = self.positions_T[first:past]
        back_tt = positions_t[:, None] - positions_t[None, :]
        return torch.where(above_SS.to(self.device)[segment_t][:, segment_t], back_tt, -1)

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        heads, kv_heads, size = q_THD.shape[1], k_TKD.shape[1], q_THD.shape[2]
        shared = heads // kv_heads  # query heads per key head become more queries: keys are never copied
        out = []
        for first, past, back_tt in self.trees:
            seen_tt = back_tt >= 0 if window is None else (back_tt >= 0) & (back_tt < window)
            q = q_THD[first:past].view(-1, kv_heads, shared, size).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, size)
            k, v = (x[first:past].transpose(0, 1)[None] for x in (k_TKD, v_TKD))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_tt.repeat(shared, 1), scale=scale)
            out.append(mixed.view(kv_heads, shared, past - first, size).permute(2, 0, 1, 3).reshape(-1, heads, size))
        return torch.cat(out)
