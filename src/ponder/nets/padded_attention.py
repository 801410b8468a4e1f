"""Attention of groups of tokens that are padded to the longest of their bucket. Shapes as in decoder.py.

Inside: B groups of a bucket, q queries and k keys of its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        self._masks: dict[tuple[int | None, int, torch.dtype], list[Tensor]] = {}
        self._real = [b.is_token_Bq.flatten().nonzero()[:, 0] for b in buckets]  # places that are no padding

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        heads, kv_heads, size = q_THD.shape[1], k_TKD.shape[1], q_THD.shape[2]
        shared = heads // kv_heads  # query heads of one key head become queries: keys are never copied
        # small products in bfloat16 take a CPU longer to start than to compute in float32
        dtype = torch.float32 if q_THD.device.type == "cpu" and q_THD.dtype == torch.bfloat16 else q_THD.dtype
        out = []
        for bucket, real, mask in zip(self.buckets, self._real, self._mask(window, shared, dtype), strict=True):
            count, longest = bucket.queries_Bq.shape
            index = bucket.queries_Bq.flatten()
            q = _take_rows(q_THD, index, real).view(count, longest, kv_heads, shared, size).permute(0, 2, 3, 1, 4)
            q = q.reshape(count, kv_heads, shared * longest, size)
            k, v = (_keys_of(bucket, x).transpose(1, 2) for x in (k_TKD, v_TKD))
            mixed = F.scaled_dot_product_attention(
                q.to(dtype), k.to(dtype), v.to(dtype), attn_mask=mask, scale=scale
            ).to(q_THD.dtype)
            mixed = mixed.view(count, kv_heads, shared, longest, size).permute(0, 3, 1, 2, 4)
            out.append(_take_rows(mixed.reshape(count * longest, heads, size), real))
        return _take_rows(torch.cat(out), self.order_T)

    def _mask(self, window: int | None, shared: int, dtype: torch.dtype) -> list[Tensor]:
        """What is added to the scores of each bucket, [B, 1, shared * q, k]; the same for all layers of this window."""
        key = window, shared, dtype
        if key not in self._masks:
            seen = [
                b.distance_Bqk >= 0 if window is None else (b.distance_Bqk >= 0) & (b.distance_Bqk < window)
                for b in self.buckets
            ]
            masks = [torch.zeros(s.shape, dtype=dtype, device=s.device).masked_fill_(~s, -torch.inf) for s in seen]
            self._masks[key] = [mask.repeat(1, shared, 1)[:, None] for mask in masks]
        return self._masks[key]


class _TakeRows(torch.autograd.Function):
    """x[index], of whose rows those at `real` count: they are of different rows of x. The others get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, real: Tensor | None) -> Tensor:
        ctx.save_for_backward(index, real)
        ctx.rows = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (index, real), grad = ctx.saved_tensors, grads[0]
        total = grad.new_zeros(ctx.rows, *grad.shape[1:])
        if real is not None:
            index, grad = index[real], grad.index_select(0, real)
        return total.index_copy_(0, index, grad), None, None


def _take_rows(x: Tensor, index: Tensor, real: Tensor | None = None) -> Tensor:
    out: Tensor = _TakeRows.apply(x, index, real)  # type: ignore[no-untyped-call]
    return out


def _keys_of(bucket: Bucket, x_TKD: Tensor) -> Tensor:
    if bucket.keys_Bk is None:
        return x_TKD[bucket.queries_Bq]  # padding's keys are not seen
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
