"""Attention over packed sequences that share prefixes. Shapes as in decoder.py; S segments.

A segment is a run of tokens with a parent segment: a prompt is a root, its completions are children, and a search tree
is deeper. A token sees its own segment up to itself, and all ancestors. So a prompt is computed once for its whole
group. Trees of similar size attend together, padded to the longest; the rest of the network sees no padding.

Inside: B trees of a bucket, t tokens of its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.nets.causal_attention import MIN_MEAN_TOKENS, CausalAttention
from ponder.nets.config import DecoderConfig
from ponder.nets.flex_attention import FlexTreeAttention
from ponder.nets.padded_run_attention import PaddedRunAttention
from ponder.nets.varlen_attention import UnbranchedRuns, VarlenTreeAttention


@dataclass(slots=True)
class _Bucket:
    index_Bt: Tensor  # token indices of each tree; arbitrary on padding
    is_token_Bt: Tensor  # False on padding
    distance_Btt: Tensor  # distance of a key on the query's path; negative if it is not on the path


def make_tree_attention(
    lengths: Sequence[int], parents: Sequence[int], config: DecoderConfig, device: torch.device, dtype: torch.dtype
) -> PaddedTreeAttention | PaddedRunAttention | VarlenTreeAttention | FlexTreeAttention | CausalAttention:
    """The fastest attention for this forest on this device."""
    runs = UnbranchedRuns(lengths, parents)
    if device.type != "cuda" or config.head_dim < 16:  # no kernel supports smaller heads
        return (
            PaddedRunAttention(runs, device)
            if PaddedRunAttention.pays(runs)
            else PaddedTreeAttention(lengths, parents, device)
        )
    total = len(runs.positions_T)
    if runs.gathered_keys == total and total >= MIN_MEAN_TOKENS * len(runs.sizes) and not any(config.windows):
        return CausalAttention(runs.sizes, runs.positions_T, device)
    if VarlenTreeAttention.supports(runs, dtype):
        return VarlenTreeAttention(runs, device)
    return FlexTreeAttention(lengths, parents, runs.positions_T, device)


class PaddedTreeAttention:
    """Attention over a forest of segments; `parents[s] < s`, or -1 for a root. Trees follow each other."""

    def __init__(self, lengths: Sequence[int], parents: Sequence[int], device: torch.device | None = None) -> None:
        starts: list[int] = []  # first position of each segment
        root = 0  # of the tree being laid out
        for length, parent in zip(lengths, parents, strict=True):
            root = len(starts) if parent < 0 else root
            if not (parent == -1 or root <= parent < len(starts)) or length < 1:
                raise ValueError(f"segment {len(starts)}: parent {parent}, length {length}")
            starts.append(0 if parent < 0 else starts[parent] + lengths[parent])
        where = [torch.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)]
        positions = torch.cat(where)
        self.positions_T = positions.to(device)
        roots = [s for s, p in enumerate(parents) if p < 0] + [len(parents)]
        trees, first = [], 0  # first token and reach of each
        for a, b in pairwise(roots):
            past = first + sum(lengths[a:b])
            trees.append((first, path_distance(lengths[a:b], [p - a for p in parents[a:b]], positions[first:past])))
            first = past
        self.buckets = [_pad_bucket(group, device) for group in _group_by_length(trees)]
        flat = torch.cat([b.index_Bt[b.is_token_Bt] for b in self.buckets])
        self.order_T = torch.empty_like(flat).scatter_(0, flat, torch.arange(len(flat), device=flat.device))
        self._masks: dict[tuple[int | None, int], list[Tensor]] = {}

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        heads, kv_heads, size = q_THD.shape[1], k_TKD.shape[1], q_THD.shape[2]
        shared = heads // kv_heads  # query heads of one key head become queries: keys are never copied
        out = []
        for bucket, mask in zip(self.buckets, self._mask(window, shared), strict=True):
            trees, longest = bucket.index_Bt.shape
            q = q_THD[bucket.index_Bt].view(trees, longest, kv_heads, shared, size).permute(0, 2, 3, 1, 4)
            k, v = (x[bucket.index_Bt].transpose(1, 2) for x in (k_TKD, v_TKD))
            q = q.reshape(trees, kv_heads, shared * longest, size)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            mixed = mixed.view(trees, kv_heads, shared, longest, size).permute(0, 3, 1, 2, 4)
            out.append(mixed.reshape(trees, longest, heads, size)[bucket.is_token_Bt])
        return torch.cat(out)[self.order_T]

    def _mask(self, window: int | None, shared: int) -> list[Tensor]:
        """Mask of each bucket, [B, 1, shared * t, t]; the same for all layers with this window."""
        if (window, shared) not in self._masks:
            seen = [
                b.distance_Btt >= 0 if window is None else (b.distance_Btt >= 0) & (b.distance_Btt < window)
                for b in self.buckets
            ]
            self._masks[window, shared] = [s.repeat(1, shared, 1)[:, None] for s in seen]
        return self._masks[window, shared]


def path_distance(lengths: Sequence[int], parents: Sequence[int], positions_t: Tensor) -> Tensor:
    """Distance of each key on each query's path, in tokens; -1 if it is not on the path."""
    count = len(lengths)
    above_SS = torch.eye(count, dtype=torch.bool)
    for s, p in enumerate(parents):
        if p >= 0:
            above_SS[s] |= above_SS[p]
    segment_t = torch.repeat_interleave(torch.arange(count), torch.tensor(lengths))
    back_tt = positions_t[:, None] - positions_t[None, :]
    return torch.where(above_SS[segment_t][:, segment_t], back_tt, -1)


def _group_by_length(trees: list[tuple[int, Tensor]]) -> list[list[tuple[int, Tensor]]]:
    """Buckets of trees in which padding to the longest costs at most about a quarter."""
    buckets: list[list[tuple[int, Tensor]]] = []
    for tree in sorted(trees, key=lambda t: len(t[1])):
        if buckets and len(tree[1]) <= 1.25 * len(buckets[-1][0][1]) + 4:
            buckets[-1].append(tree)
        else:
            buckets.append([tree])
    return buckets


def _pad_bucket(trees: list[tuple[int, Tensor]], device: torch.device | None) -> _Bucket:
    longest = max(len(reach) for _, reach in trees)
    index = torch.zeros(len(trees), longest, dtype=torch.long)
    real = torch.zeros(len(trees), longest, dtype=torch.bool)
    back = torch.full((len(trees), longest, longest), -1)
    back.diagonal(dim1=1, dim2=2).zero_()  # padding sees itself: a softmax over nothing is NaN
    for i, (first, reach) in enumerate(trees):
        size = len(reach)
        index[i, :size] = torch.arange(first, first + size)
        real[i, :size] = True
        back[i, :size, :size] = reach
    return _Bucket(index.to(device), real.to(device), back.to(device))
