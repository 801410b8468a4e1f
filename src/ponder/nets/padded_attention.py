"""Attention of groups of tokens that are padded to the longest of their bucket. Shapes as in decoder.py.

Inside: B groups of a bucket, q queries and k keys of its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.nets.varlen_attention import gather_keys


@dataclass(slots=True)
class Bucket:
    queries_Bq: Tensor  # token indices of each group; arbitrary on padding
    is_token_Bq: Tensor  # False on padding
    distance_Bqk: Tensor  # of a key from the query, in tokens; negative if the query does not see it
    keys_Bk: Tensor | None = None  # token indices of each group's keys, arbitrary on padding; None: its queries


class PaddedAttention:
    """Attention in buckets; every token is a query of one of them."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        flat = torch.cat([b.queries_Bq[b.is_token_Bq] for b in buckets])
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
            k, v = (_keys_of(bucket, x).transpose(1, 2) for x in (k_TKD, v_TKD))
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


def _keys_of(bucket: Bucket, x_TKD: Tensor) -> Tensor:
    if bucket.keys_Bk is None:
        return x_TKD[bucket.queries_Bq]
    return gather_keys(x_TKD, bucket.keys_Bk.flatten()).view(*bucket.keys_Bk.shape, *x_TKD.shape[1:])


def group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Buckets, as places in `lengths`, in which padding to the longest costs at most about a quarter."""
    buckets: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda p: lengths[p]):
        if buckets and lengths[place] <= 1.25 * lengths[buckets[-1][0]] + 4:
            buckets[-1].append(place)
        else:
            buckets.append([place])
    return buckets
