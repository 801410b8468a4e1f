"""Attention over the key-value cache in plain torch, on any device.

Shapes: K key heads, G query heads that share one, D head size, S slots, B rows, L tail length; for shared segments N
segments, R rows of the largest, P tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.engine.attention_plan import AttentionPlan, KVSegment, inline_segments, split_tail
from ponder.engine.kv_cache import KVCache
from ponder.engine.scheduler import PrefillChunk

_cpu_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_MAX_TAIL_COPY_BYTES = 512 << 20  # bytes of tails that are kept as a contiguous copy
_MAX_INLINE_BYTES = 8 << 20  # bytes of a layer that may be read repeatedly, to have one piece instead of two
# Products as small as one row's scores: oneMKL is faster at many of them than the fused attention, others are slower.
_MKL_BATCHED_MATMUL = torch.backends.mkl.is_available()
_MAX_PADDED_SCORES = 1 << 14  # scores of padding that cost less than another group of segments


class PrefillAttention:
    """Attention of prefill: each token sees its path in the cache and the tokens before it in its chunk."""

    def __init__(self, cache: KVCache, chunks: Sequence[PrefillChunk]) -> None:
        self.cache = cache
        self.sizes = [chunk.stop - chunk.start for chunk in chunks]
        self.tokens = np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int64)
        self.seen = [cache.to_device(chunk.visible_slots.astype(np.int64)) for chunk in chunks]
        self.slots_T = cache.to_device(np.concatenate([chunk.slots for chunk in chunks]).astype(np.int64))
        at = [np.arange(chunk.position, chunk.position + n) for chunk, n in zip(chunks, self.sizes, strict=True)]
        self.positions_T = cache.to_device(np.concatenate(at))

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        self.cache.write(layer, self.slots_T, _stack_kv(k_TKD, v_TKD))
        kv = self.cache.kv[layer]
        group = q_THD.shape[1] // k_TKD.shape[1]
        mixed = []
        for q, seen in zip(q_THD.split(self.sizes), self.seen, strict=True):
            k, v = kv.index_select(2, seen).repeat_interleave(group, dim=1)
            if len(q) == len(seen) and window is None:
                out = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True, scale=scale)
            else:
                back = torch.arange(len(seen) - len(q), len(seen), device=q.device)[:, None]
                back = back - torch.arange(len(seen), device=q.device)
                mask = back >= 0 if window is None else (back >= 0) & (back < window)
                out = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=mask, scale=scale)
            mixed.append(out.transpose(0, 1))
        return torch.cat(mixed)


class MixedAttention:
    """Attention of decoding rows, followed by prefill chunks, in one step."""

    def __init__(self, decoding: DecodeAttention, prefill: PrefillAttention) -> None:
        self.decoding, self.prefill = decoding, prefill
        self.positions_T = torch.cat([decoding.positions_T, prefill.positions_T])

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        sizes = [rows := len(self.decoding.positions_T), len(q_THD) - rows]
        both = zip((self.decoding, self.prefill), *(x.split(sizes) for x in (q_THD, k_TKD, v_TKD)), strict=True)
        return torch.cat([attend(layer, q, k, v, scale=scale, window=window) for attend, q, k, v in both])


class SegmentGroup:
    """Shared segments of similar size, padded to the largest of the group rather than of the whole plan."""

    def __init__(self, cache: KVCache, segments: Sequence[KVSegment]) -> None:
        slots = [s.slots for s in segments]
        shape = len(slots), max(len(s.rows) for s in segments)
        longest = max(map(len, slots))
        rows_NR, real_NR = np.zeros(shape, np.int64), np.zeros(shape, bool)
        slots_NP, real_NP = np.zeros((len(slots), longest), np.int64), np.zeros((len(slots), longest), bool)
        for n, (segment, its) in enumerate(zip(segments, slots, strict=True)):
            rows_NR[n, : len(segment.rows)] = segment.rows
            slots_NP[n] = its[0]
            slots_NP[n, : len(its)] = its
            real_NR[n, : len(segment.rows)] = True
            real_NP[n, : len(its)] = True
        begin = np.asarray([s.position for s in segments])
        self.key_positions_NP = cache.to_device(begin[:, None] + np.arange(longest))
        self.is_key_NP = cache.to_device(real_NP)
        self.rows_NR = cache.to_device(rows_NR)
        self.slots_NP = cache.to_device(slots_NP)
        self.entries = cache.to_device(np.flatnonzero(real_NR.ravel()))  # indices into N x R that are real rows
        self.entry_rows = cache.to_device(rows_NR.ravel()[np.flatnonzero(real_NR.ravel())])


class DecodeAttention:
    """Attention of one new token per row: shared segments once for all their rows, then each row's tail.

    Each piece gives a maximum, a sum of exponentials and a weighted value, which combine exactly to one softmax. On a
    CPU, keys and values of the tails are kept as a contiguous copy while the batch stays the same, so that a step does
    not gather them again.
    """

    def __init__(self, cache: KVCache, plan: AttentionPlan) -> None:
        self.cache = cache
        self.on_cpu = cache.device.type == "cpu"
        per_token = cache.kv[0][:, :, 0].nbytes
        if self.on_cpu:
            _inline_short_segments(plan, per_token)
        _split_long_tails(plan)
        rows = len(plan.tails)
        lengths = np.asarray([len(t) for t in plan.tails])
        self.lengths, self.starts = lengths, np.asarray(plan.tail_starts)
        self.tail_slots = np.zeros((rows, _tail_columns(int(lengths.max()))), np.int64)
        for r, tail in enumerate(plan.tails):
            self.tail_slots[r] = tail[0]  # padding: its own slot, since another may hold NaN
            self.tail_slots[r, : len(tail)] = tail
        self.shared = [SegmentGroup(cache, segments) for segments in _group_by_size(plan.shared)]
        self._tail_copies: dict[int, Tensor] = {}  # by layer
        dtype = cache.kv[0].dtype
        self._use_batched_matmul = _MKL_BATCHED_MATMUL and self.on_cpu and not self.shared and dtype != torch.float64
        self._tail_copy_dtype = torch.float32 if self._use_batched_matmul else dtype
        self._update_tensors()

    def grow(self, slots: np.ndarray) -> None:
        """One more token for each row."""
        if self.lengths.max() + 1 > self.tail_slots.shape[1]:
            more = np.repeat(
                self.tail_slots[:, :1], _tail_columns(self.tail_slots.shape[1]) - self.tail_slots.shape[1], axis=1
            )
            self.tail_slots = np.concatenate([self.tail_slots, more], axis=1)
            self._tail_copies = {}  # copied again, with more columns
        self.tail_slots[np.arange(len(slots)), self.lengths] = slots
        self.lengths = self.lengths + 1
        self._update_tensors()

    def _update_tensors(self) -> None:
        put = self.cache.to_device
        self.longest = longest = int(self.lengths.max())
        rows = np.arange(len(self.lengths))
        self.slots_B = put(self.tail_slots[rows, self.lengths - 1])
        self.last_B = put(rows * self.tail_slots.shape[1] + self.lengths - 1)  # where these are in `_tail_copies`
        self.positions_T = put(self.starts + self.lengths - 1)
        self.back_BL = put(
            (self.lengths - 1)[:, None] - np.arange(longest)
        )  # distance from the newest token to each key
        self._masks: dict[int | None, Tensor] = {}
        size = (
            self.tail_slots.size
            * self.cache.kv[0][:, :, 0].numel()
            * self._tail_copy_dtype.itemsize
            * len(self.cache.kv)
        )
        self._keeps_tail_copies = self.on_cpu and size <= _MAX_TAIL_COPY_BYTES
        if not (self._keeps_tail_copies and self._tail_copies):
            self.slots_BL = put(self.tail_slots[:, :longest])

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        new = _stack_kv(k_TKD, v_TKD)
        self.cache.write(layer, self.slots_B, new)
        kv = self.cache.kv[layer]
        (rows, heads, size), groups = q_THD.shape, k_TKD.shape[1]
        q_KBGD = q_THD.view(rows, groups, -1, size).transpose(0, 1)
        k_KBLD, v_KBLD = self._tail_kv(layer, kv, new)
        if self._use_batched_matmul:
            mask = self._mask(window, torch.float32, groups).flatten(0, 1)
            mixed = _batched_matmul_attention(q_KBGD, k_KBLD, v_KBLD, mask, scale)
            return mixed.transpose(0, 1).reshape(rows, heads, size).to(q_THD.dtype)
        if self.on_cpu:
            mask = self._mask(window, q_THD.dtype).expand(*q_KBGD.shape[:3], -1)
            mixed, top = _cpu_flash_attention(q_KBGD, k_KBLD, v_KBLD, 0.0, False, attn_mask=mask, scale=scale)
            if not self.shared:
                return mixed.transpose(0, 1).reshape(rows, heads, size)
            top, total, mixed = _partial_from_lse(top, mixed)
            q_KBGD = q_KBGD * scale
        else:
            q_KBGD = q_KBGD * scale
            top, total, mixed = _partial_attention(q_KBGD, k_KBLD, v_KBLD, self._in_window(window)[None, :, None, :])
        if self.shared:
            top, total, mixed = self._add_shared_segments(kv, q_KBGD, window, top, total, mixed)
        return (mixed / total[..., None]).transpose(0, 1).reshape(rows, heads, size).to(q_THD.dtype)

    def _tail_kv(self, layer: int, kv: Tensor, new_2KBD: Tensor) -> Tensor:
        """Keys and values [2, K, B, L, D] of each row's tail."""
        groups, size, (rows, room) = kv.shape[1], kv.shape[3], self.tail_slots.shape
        if not self._keeps_tail_copies:
            return kv.index_select(2, self.slots_BL.view(-1)).view(2, groups, rows, -1, size)
        tail_copy = self._tail_copies.get(layer)
        if tail_copy is None:
            tail_copy = self._tail_copies[layer] = kv.new_zeros(
                2, groups, rows, room, size, dtype=self._tail_copy_dtype
            )
            tail_copy[:, :, :, : self.longest] = kv.index_select(2, self.slots_BL.view(-1)).view(
                2, groups, rows, -1, size
            )
        else:
            tail_copy.view(2, groups, rows * room, size).index_copy_(2, self.last_B, new_2KBD.to(self._tail_copy_dtype))
        return tail_copy[:, :, :, : self.longest]

    def _in_window(self, window: int | None) -> Tensor:
        return self.back_BL >= 0 if window is None else (self.back_BL >= 0) & (self.back_BL < window)

    def _mask(self, window: int | None, dtype: torch.dtype, groups: int = 1) -> Tensor:
        """The mask added to the scores of tails, for all layers of a step."""
        if window not in self._masks:
            near = self._in_window(window)[None, :, None, :].expand(groups, -1, -1, -1)
            self._masks[window] = torch.zeros(near.shape, dtype=dtype).masked_fill_(~near, -torch.inf)
        return self._masks[window]

    def _add_shared_segments(
        self, kv: Tensor, q_KBGD: Tensor, window: int | None, top: Tensor, total: Tensor, mixed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        groups, _, per, size = q_KBGD.shape
        for runs in self.shared:
            n, r = runs.rows_NR.shape
            k_KNPD, v_KNPD = kv.index_select(2, runs.slots_NP.view(-1)).view(2, groups, n, -1, size)
            q = q_KBGD.index_select(1, runs.rows_NR.view(-1)).view(groups, n, r * per, size)
            seen = runs.is_key_NP[None, :, None, :]
            if window is not None:
                back = self.positions_T[runs.rows_NR][:, :, None] - runs.key_positions_NP[:, None, :]
                seen = seen & (back < window).repeat_interleave(per, dim=1)[None]
            pieces = _partial_attention(q, k_KNPD, v_KNPD, seen, whole=window is None)
            top_e, total_e, mixed_e = (
                x.reshape(groups, n * r, per, *x.shape[3:]).index_select(1, runs.entries) for x in pieces
            )
            rows = runs.entry_rows
            highest = top.scatter_reduce(1, rows[None, :, None].expand_as(top_e), top_e, "amax")
            old, new = (top - highest).exp(), (top_e - highest.index_select(1, rows)).exp()
            total = (total * old).index_add_(1, rows, total_e * new)
            mixed = (mixed * old[..., None]).index_add_(1, rows, mixed_e * new[..., None])
            top = highest
        return top, total, mixed


def _tail_columns(length: int) -> int:
    """Columns for tails of that length, with room to grow."""
    return max(length + 32, length * 5 // 4)


def _inline_short_segments(plan: AttentionPlan, token_bytes: int) -> None:
    """Short shared segments are read by each of their rows: that costs less than combining pieces."""
    if plan.repeated_reads() * token_bytes <= _MAX_INLINE_BYTES:
        inline_segments(plan, lambda _: False)


def _split_long_tails(plan: AttentionPlan) -> None:
    """A tail far longer than the others, which would all be padded to it, becomes a segment of its own, except for its
    last token, which is not written yet."""
    lengths = np.asarray([len(tail) for tail in plan.tails])
    if lengths.max() * len(lengths) <= 2 * lengths.sum() + _MAX_PADDED_SCORES:
        return
    for r in np.flatnonzero(lengths > 2 * lengths.mean()).tolist():
        split_tail(plan, r, int(lengths[r]) - 1)


def _group_by_size(shared: Sequence[KVSegment]) -> list[list[KVSegment]]:
    """Groups of segments to be padded to one size, such that at most half of a group is padding, or only little."""
    sizes = [(len(s.rows), len(s)) for s in shared]
    out: list[list[KVSegment]] = []
    most_rows = longest = real = 0
    for i in sorted(range(len(shared)), key=lambda i: tuple(size.bit_length() for size in sizes[i])):
        rows, length = sizes[i]
        most_rows, longest, real = max(most_rows, rows), max(longest, length), real + rows * length
        if not out or (len(out[-1]) + 1) * most_rows * longest > 2 * real + _MAX_PADDED_SCORES:
            out.append([])
            most_rows, longest, real = rows, length, rows * length
        out[-1].append(shared[i])
    return out


def _partial_attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, whole: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention to some of the keys: the largest score, the sum of exponentials below it, and the weighted values.

    `whole`: every query sees a key. Then a CPU needs one call, which gives the log of the sum instead: many products as
    small as these are three times slower one by one.
    """
    if whole and q.device.type == "cpu":
        mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf).expand(*q.shape[:3], -1)
        mixed, top = _cpu_flash_attention(q, k, v, 0.0, False, attn_mask=mask, scale=1.0)
        return _partial_from_lse(top, mixed)
    scores = (q @ k.transpose(-1, -2)).float().masked_fill(~seen, -torch.inf)
    top = scores.amax(-1).clamp(min=-1e30)  # if no key is visible, the sum is 0
    weights = (scores - top[..., None]).exp()
    return top, weights.sum(-1), (weights.to(v.dtype) @ v).float()


def _batched_matmul_attention(q_KBGD: Tensor, k_KBLD: Tensor, v_KBLD: Tensor, mask_N1L: Tensor, scale: float) -> Tensor:
    """Attention as products of small matrices, N of them, in float32."""
    groups, rows, per, size = q_KBGD.shape
    q_NGD, k_NLD, v_NLD = (x.float().flatten(0, 1) for x in (q_KBGD, k_KBLD, v_KBLD))
    weights_NGL = torch.baddbmm(mask_N1L, q_NGD, k_NLD.transpose(1, 2), alpha=scale).softmax(-1)
    return torch.bmm(weights_NGL, v_NLD).view(groups, rows, per, size)


def _stack_kv(k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    return torch.stack([k_TKD, v_TKD]).transpose(1, 2)


def _partial_from_lse(top: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Partial attention whose sum of exponentials is contained in `top`."""
    return top.float(), torch.ones_like(top, dtype=torch.float32), mixed.float()
