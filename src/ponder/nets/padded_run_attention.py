"""Attention over packed sequences that share prefixes, on a CPU. Shapes as in decoder.py.

As in varlen_attention.py the queries of an unbranched run are its own tokens, its keys those of its whole path. Runs
with paths of similar length attend together, padded to the longest. Over a whole tree at once, most of what is
computed would be masked: each of 16 completions would be compared with the 15 others.

Inside: B runs of a bucket, q tokens of its longest run, k of its longest path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.nets.varlen_attention import UnbranchedRuns, gather_keys

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class _Bucket:
    queries_Bq: Tensor  # token indices of each run; arbitrary on padding
    is_token_Bq: Tensor  # False on padding
    keys_Bk: Tensor  # token indices of each path; arbitrary on padding
    distance_Bqk: Tensor  # of a key from the query; negative if it comes later or is padding


class PaddedRunAttention:
    """Attention over the unbranched runs of a forest."""

    @staticmethod
    def pays(runs: UnbranchedRuns) -> bool:
        """Whether it computes less than attention over whole trees."""
        tokens, trees = 0, list[int]()
        for size, parent in zip(runs.sizes, runs.parent, strict=True):
            if parent < 0:
                trees.append(0)
            trees[-1] += size
            tokens += size
        own = sum(size * path for size, path in zip(runs.sizes, runs.path_lengths, strict=True))
        return 2 * own + runs.gathered_keys < sum(n * n for n in trees) + tokens

    def __init__(self, runs: UnbranchedRuns, device: torch.device | None = None) -> None:
        self.positions_T = torch.as_tensor(runs.positions_T, dtype=torch.int64).to(device)
        ends = np.cumsum(runs.path_lengths)
        paths = np.split(runs.index_G(), ends[:-1])
        self.buckets = [_pad_bucket(runs, paths, group, device) for group in _group_by_length(runs.path_lengths)]
        flat = torch.cat([b.queries_Bq[b.is_token_Bq] for b in self.buckets])
        self.order_T = torch.empty_like(flat).scatter_(0, flat, torch.arange(len(flat), device=flat.device))
        self._masks: dict[tuple[int | None, int], list[Tensor]] = {}

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        heads, kv_heads, size = q_THD.shape[1], k_TKD.shape[1], q_THD.shape[2]
        shared = heads // kv_heads  # query heads of one key head become queries: keys are never copied
        out = []
        for bucket, mask in zip(self.buckets, self._mask(window, shared), strict=True):
            count, longest = bucket.queries_Bq.shape
            q = q_THD[bucket.queries_Bq].view(count, longest, kv_heads, shared, size).permute(0, 2, 3, 1, 4)
            q = q.reshape(count, kv_heads, shared * longest, size)
            k, v = (
                gather_keys(x, bucket.keys_Bk.flatten()).view(count, -1, kv_heads, size).transpose(1, 2)
                for x in (k_TKD, v_TKD)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            mixed = mixed.view(count, kv_heads, shared, longest, size).permute(0, 3, 1, 2, 4)
            out.append(mixed.reshape(count, longest, heads, size)[bucket.is_token_Bq])
        return torch.cat(out)[self.order_T]

    def _mask(self, window: int | None, shared: int) -> list[Tensor]:
        """Mask of each bucket, [B, 1, shared * q, k]; the same for all layers with this window."""
        if (window, shared) not in self._masks:
            seen = [
                b.distance_Bqk >= 0 if window is None else (b.distance_Bqk >= 0) & (b.distance_Bqk < window)
                for b in self.buckets
            ]
            self._masks[window, shared] = [s.repeat(1, shared, 1)[:, None] for s in seen]
        return self._masks[window, shared]


def _group_by_length(path_lengths: list[int]) -> list[list[int]]:
    """Buckets of runs in which padding to the longest path costs at most about a quarter."""
    buckets: list[list[int]] = []
    for run in sorted(range(len(path_lengths)), key=lambda r: path_lengths[r]):
        if buckets and path_lengths[run] <= 1.25 * path_lengths[buckets[-1][0]] + 4:
            buckets[-1].append(run)
        else:
            buckets.append([run])
    return buckets


def _pad_bucket(runs: UnbranchedRuns, paths: list[Indices], group: list[int], device: torch.device | None) -> _Bucket:
    longest, longest_path = max(runs.sizes[r] for r in group), max(runs.path_lengths[r] for r in group)
    queries, keys = (np.zeros((len(group), n), dtype=np.int64) for n in (longest, longest_path))
    real = np.zeros((len(group), longest), dtype=bool)
    distance = np.full((len(group), longest, longest_path), -1, dtype=np.int64)
    distance[:, :, 0] = 0  # padding sees the first key: a softmax over nothing is NaN
    for i, r in enumerate(group):
        size, path = runs.sizes[r], runs.path_lengths[r]
        queries[i, :size] = paths[r][path - size :]
        real[i, :size] = True
        keys[i, :path] = paths[r]
        distance[i, :size, :path] = np.arange(path - size, path)[:, None] - np.arange(path)
    return _Bucket(*(torch.from_numpy(x).to(device) for x in (queries, real, keys, distance)))
