"""Attention over packed sequences that share prefixes. Shapes as in decoder.py; S segments.

A segment is a run of tokens with a parent segment: a prompt is a root, its completions are children, and a search tree
is deeper. A token sees its own segment up to itself, and all ancestors. So a prompt is computed once for its whole
group. Trees of similar size attend together, padded to the longest; the rest of the network sees no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ponder.nets.causal_attention import MIN_MEAN_TOKENS, CausalAttention
from ponder.nets.config import DecoderConfig
from ponder.nets.flex_attention import FlexTreeAttention
from ponder.nets.padded_attention import Bucket, PaddedAttention, group_by_length
from ponder.nets.padded_run_attention import PaddedRunAttention
from ponder.nets.varlen_attention import UnbranchedRuns, VarlenTreeAttention


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


class PaddedTreeAttention(PaddedAttention):
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
        groups = group_by_length([len(reach) for _, reach in trees])
        super().__init__([_pad_bucket([trees[place] for place in group], device) for group in groups])


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


def _pad_bucket(trees: list[tuple[int, Tensor]], device: torch.device | None) -> Bucket:
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
    return Bucket(index.to(device), real.to(device), back.to(device))
