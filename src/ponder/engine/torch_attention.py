"""Attention over the key-value cache in plain torch, on any device.

Shapes: K key heads, G query heads that share one, D head size, S slots, B rows, L tail length; for shared segments N
segments, R rows of the largest, P tokens of the longest; N = B x K.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine.attention_plan import AttentionPlan, KVSegment, inline_segments, split_tail
from ponder.engine.kv_cache import KVCache
from ponder.engine.radix_tree import Slots
from ponder.types import Ids

_cpu_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_MAX_TAIL_COPY_BYTES = 512 << 20  # bytes of tails that are kept as a contiguous copy
_MAX_INLINE_BYTES = 8 << 20  # bytes of a layer that may be read repeatedly, to have one piece instead of two
# Products as small as one row's scores: oneMKL is faster at many of them than the fused attention, others are slower.
_MKL_BATCHED_MATMUL = torch.backends.mkl.is_available()
_MAX_PADDED_SCORES = 1 << 14  # scores of padding that cost less than another group of segments


class PromptPart(Protocol):
    """Tokens of a prompt that a pass computes."""

    @property
    def tokens(self) -> Ids: ...
    @property
    def slots(self) -> Slots: ...
    @property
    def visible_slots(self) -> Slots:
        """Slots of all tokens up to its last."""
        ...

    @property
    def position(self) -> int:
        """Of its first token."""
        ...


class PrefillAttention:
    """Attention of prefill: each token sees its path in the cache and the tokens before it in its chunk."""

    def __init__(self, cache: KVCache, chunks: Sequence[PromptPart]) -> None:
        self.cache = cache
        self.sizes = [len(chunk.tokens) for chunk in chunks]
        self.tokens = np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int64)
        self.slots_T = cache.to_device(np.concatenate([chunk.slots for chunk in chunks]).astype(np.int64))
        at = [np.arange(chunk.position, chunk.position + n) for chunk, n in zip(chunks, self.sizes, strict=True)]
        self.positions_T = cache.to_device(np.concatenate(at))
        seen = [chunk.visible_slots for chunk in chunks]
        first = [0, *itertools.accumulate(self.sizes)]
        self._alone: list[tuple[int, int, Tensor]] = []  # the tokens of a chunk, from and to, and what it sees
        self._groups: list[_PaddedChunks] = []
        for group in chunk_groups(self.sizes, [len(slots) for slots in seen]):
            if len(group) == 1:
                (i,) = group
                self._alone.append((first[i], first[i + 1], cache.to_device(seen[i].astype(np.int64))))
            else:
                sizes = [self.sizes[i] for i in group]
                self._groups.append(_PaddedChunks(cache, [first[i] for i in group], sizes, [seen[i] for i in group]))

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        self.cache.write(layer, self.slots_T, _stack_kv(k_TKD, v_TKD))
        kv = self.cache.kv[layer]
        share = q_THD.shape[1] // k_TKD.shape[1]
        if len(self._groups) == 1 and not self._alone:  # all chunks, in their order
            return self._groups[0](kv, q_THD, scale, window)
        out_THD = torch.empty_like(q_THD)
        for group in self._groups:
            out_THD.index_copy_(0, group.tokens, group(kv, q_THD, scale, window))
        for start, stop, seen in self._alone:
            out_THD[start:stop] = _attend_alone(kv, q_THD[start:stop], seen, share, scale, window)
        return out_THD


def _attend_alone(kv: Tensor, q_QHD: Tensor, seen: Tensor, share: int, scale: float, window: int | None) -> Tensor:
    """Attention of the Q tokens of one chunk, whose query heads share key heads."""
    k, v = kv.index_select(2, seen).repeat_interleave(share, dim=1)
    if len(q_QHD) == len(seen) and window is None:
        out = F.scaled_dot_product_attention(q_QHD.transpose(0, 1), k, v, is_causal=True, scale=scale)
    else:
        back = torch.arange(len(seen) - len(q_QHD), len(seen), device=q_QHD.device)[:, None]
        back = back - torch.arange(len(seen), device=q_QHD.device)
        mask = back >= 0 if window is None else (back >= 0) & (back < window)
        out = F.scaled_dot_product_attention(q_QHD.transpose(0, 1), k, v, attn_mask=mask, scale=scale)
    return out.transpose(0, 1)


class _PaddedChunks:
    """Chunks of similar size, padded to the largest, in one call: M chunks, Q new tokens of each, S tokens seen."""

    def __init__(
        self, cache: KVCache, firsts: Sequence[int], new_tokens: Sequence[int], seen: Sequence[NDArray[Any]]
    ) -> None:
        sizes, first = np.asarray(new_tokens), np.asarray(firsts)
        many, new, longest = len(sizes), int(sizes.max()), max(map(len, seen))
        slots_MS = np.empty((many, longest), np.int64)
        for row, slots in zip(slots_MS, seen, strict=True):
            row[: len(slots)] = slots
            row[len(slots) :] = slots[-1]  # padding
        query_MQ = first[:, None] + np.minimum(np.arange(new), sizes[:, None] - 1)  # padding: the chunk's last token
        before_M = np.asarray([len(s) for s in seen]) - sizes
        at_MQ = before_M[:, None] + np.minimum(np.arange(new), sizes[:, None] - 1)
        self.shape = many, new
        self.slots, self.queries = cache.to_device(slots_MS.ravel()), cache.to_device(query_MQ.ravel())
        self.back_MQS = cache.to_device(at_MQ[:, :, None] - np.arange(longest))
        real_MQ = np.arange(new) < sizes[:, None]
        self.real = cache.to_device(np.flatnonzero(real_MQ.ravel()))
        self.tokens = cache.to_device(query_MQ[real_MQ])  # in the order of the output
        self._masks: dict[int | None, Tensor] = {}

    def __call__(self, kv: Tensor, q_THD: Tensor, scale: float, window: int | None) -> Tensor:
        (_, heads, size), groups = q_THD.shape, kv.shape[1]
        many, new = self.shape
        kv_2KMSD = kv.index_select(2, self.slots).view(2, groups, many, -1, size)
        kv_2MHSD = kv_2KMSD.transpose(1, 2)
        if heads > groups:
            kv_2MHSD = kv_2MHSD.repeat_interleave(heads // groups, dim=2)
        k_MHSD, v_MHSD = kv_2MHSD
        q_MHQD = q_THD.index_select(0, self.queries).view(many, new, heads, size).transpose(1, 2)
        if window not in self._masks:
            near = self.back_MQS >= 0 if window is None else (self.back_MQS >= 0) & (self.back_MQS < window)
            self._masks[window] = near[:, None]
        out = F.scaled_dot_product_attention(q_MHQD, k_MHSD, v_MHSD, attn_mask=self._masks[window], scale=scale)
        return out.transpose(1, 2).reshape(many * new, heads, size).index_select(0, self.real)


def chunk_groups(new_tokens: Sequence[int], seen_tokens: Sequence[int]) -> list[list[int]]:
    """Which chunks are padded to one size: those for which padding costs less than a call for each. The turns of
    episodes have prefixes of many lengths, so chunks go together by what they see."""
    order = sorted(range(len(new_tokens)), key=lambda i: (seen_tokens[i], new_tokens[i]))
    groups: list[list[int]] = []
    most = real = 0  # new tokens of a chunk, and scores of all, in the last group
    for i in order:
        new, seen = new_tokens[i], seen_tokens[i]
        padded = (len(groups[-1]) + 1) * max(most, new) * seen if groups else 0
        if groups and padded <= 2 * (real + new * seen) + _MAX_PADDED_SCORES:
            groups[-1].append(i)
            most, real = max(most, new), real + new * seen
        else:
            groups.append([i])
            most, real = new, new * seen
    return [sorted(group) for group in groups]


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
        if self.on_cpu and not reads_segments_repeatedly(plan, cache):
            inline_segments(plan, lambda _: False)  # that costs less than combining pieces
        _split_long_tails(plan)
        rows = len(plan.tails)
        lengths = np.asarray([len(t) for t in plan.tails])
        self.lengths, self.starts = lengths, np.asarray(plan.tail_starts)
        self.tail_slots = np.zeros((rows, tail_columns(int(lengths.max()))), np.int64)
        for r, tail in enumerate(plan.tails):
            self.tail_slots[r] = tail[0]  # padding: its own slot, since another may hold NaN
            self.tail_slots[r, : len(tail)] = tail
        self.shared = [SegmentGroup(cache, segments) for segments in _group_by_size(plan.shared)]
        self._tail_copies: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: keys and values, with room to grow
        dtype, self.kv_heads = cache.kv[0].dtype, cache.kv[0].shape[1]
        self._use_batched_matmul = _MKL_BATCHED_MATMUL and self.on_cpu and not self.shared and dtype != torch.float64
        self._tail_copy_dtype = torch.float32 if self._use_batched_matmul else dtype
        self._make_mask()
        self._update_tensors()

    def grow(self, slots: np.ndarray) -> None:
        """One more token for each row."""
        if self.lengths.max() + 1 > self.tail_slots.shape[1]:
            more = np.repeat(
                self.tail_slots[:, :1], tail_columns(self.tail_slots.shape[1]) - self.tail_slots.shape[1], axis=1
            )
            self.tail_slots = np.concatenate([self.tail_slots, more], axis=1)
            self._tail_copies = {}  # copied again, with more columns
            self._make_mask()
        self.tail_slots[np.arange(len(slots)), self.lengths] = slots
        if self._mask_BKL is not None:
            self._mask_BKL[np.arange(len(slots)), :, self.lengths] = 0
        self.lengths = self.lengths + 1
        self._update_tensors()

    def keep_rows(self, rows: np.ndarray) -> None:
        """Drop all other rows. There must be no shared segments."""
        assert not self.shared
        self.lengths, self.starts, self.tail_slots = self.lengths[rows], self.starts[rows], self.tail_slots[rows]
        index = self.cache.to_device(rows)
        self._tail_copies = {
            layer: (keys.index_select(0, index), values.index_select(0, index))
            for layer, (keys, values) in self._tail_copies.items()
        }
        self._make_mask()

    def _make_mask(self) -> None:
        """What is added to the scores of tails without a window: 0, and -inf after a row's end. `grow` extends it."""
        self._mask_BKL: np.ndarray | None = None
        if self._use_batched_matmul:
            room = self.tail_slots.shape[1]
            mask = np.where(np.arange(room) < self.lengths[:, None], np.float32(0), np.float32(-np.inf))
            self._mask_BKL = np.repeat(mask[:, None], self.kv_heads, axis=1)

    def _update_tensors(self) -> None:
        put = self.cache.to_device
        self.longest = longest = int(self.lengths.max())
        rows = np.arange(len(self.lengths))
        self.slots_B = put(self.tail_slots[rows, self.lengths - 1])
        newest_N = np.repeat(self.lengths - 1, self.kv_heads)
        self.last_N = put(np.arange(len(newest_N)) * self.tail_slots.shape[1] + newest_N)  # where these are in a copy
        if self._use_batched_matmul:  # and where each entry of their keys is
            size, room = self.cache.kv[0].shape[3], self.tail_slots.shape[1]
            entries = np.arange(len(newest_N) * size) * room + np.repeat(newest_N, size)
            self.last_key_entries = put(entries)
        self.positions_T = put(self.starts + self.lengths - 1)
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
        new_2TKD = torch.stack([k_TKD, v_TKD])
        self.cache.write(layer, self.slots_B, new_2TKD.transpose(1, 2))
        kv = self.cache.kv[layer]
        (rows, heads, size), groups = q_THD.shape, k_TKD.shape[1]
        if self._use_batched_matmul:
            q_NGD = q_THD.float().reshape(rows * groups, -1, size)
            k_BKLD, v_BKLD = self._tail_kv(layer, kv, new_2TKD)
            mixed = _batched_matmul_attention(
                q_NGD, k_BKLD.flatten(0, 1), v_BKLD.flatten(0, 1), self._mask_N1L(window), scale
            )
            return mixed.view(rows, heads, size).to(q_THD.dtype)
        q_KBGD = q_THD.view(rows, groups, -1, size).transpose(0, 1)
        k_KBLD, v_KBLD = (x.transpose(0, 1) for x in self._tail_kv(layer, kv, new_2TKD))
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

    def _tail_kv(self, layer: int, kv: Tensor, new_2BKD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, K, L, D] of each row's tail."""
        groups, size, rows = kv.shape[1], kv.shape[3], len(self.tail_slots)
        if not self._keeps_tail_copies:
            k_KBLD, v_KBLD = kv.index_select(2, self.slots_BL.view(-1)).view(2, groups, rows, -1, size)
            return k_KBLD.transpose(0, 1), v_KBLD.transpose(0, 1)
        if layer in self._tail_copies:
            keys, values = self._tail_copies[layer]
            new_2ND = new_2BKD.to(self._tail_copy_dtype).view(2, rows * groups, size)
            values.view(-1, size).index_copy_(0, self.last_N, new_2ND[1])
            if self._use_batched_matmul:
                keys.view(-1).index_copy_(0, self.last_key_entries, new_2ND[0].view(-1))
            else:
                keys.view(-1, size).index_copy_(0, self.last_N, new_2ND[0])
        else:
            keys, values = self._copy_tails(kv)
            self._tail_copies[layer] = keys, values
        if self._use_batched_matmul:
            keys = keys.transpose(2, 3)
        return keys[:, :, : self.longest], values[:, :, : self.longest]

    def _copy_tails(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, K, L, D], with room to grow: zeros, which are read, and masked, where other rows are
        longer. For batched products keys are [B, K, D, L]: products along L are faster."""
        groups, size, (rows, room) = kv.shape[1], kv.shape[3], self.tail_slots.shape
        k_KBLD, v_KBLD = kv.index_select(2, self.slots_BL.view(-1)).view(2, groups, rows, -1, size)
        values = kv.new_empty(rows, groups, room, size, dtype=self._tail_copy_dtype)
        values[:, :, : self.longest], values[:, :, self.longest :] = v_KBLD.transpose(0, 1), 0
        if not self._use_batched_matmul:
            keys = torch.empty_like(values)
            keys[:, :, : self.longest], keys[:, :, self.longest :] = k_KBLD.transpose(0, 1), 0
        else:
            keys = kv.new_empty(rows, groups, size, room, dtype=self._tail_copy_dtype)
            keys[..., : self.longest], keys[..., self.longest :] = k_KBLD.transpose(0, 1).transpose(2, 3), 0
        return keys, values

    def _in_window(self, window: int | None) -> Tensor:
        """Which keys of its tail each row sees, [B, L]."""
        back_BL = self.cache.to_device((self.lengths - 1)[:, None] - np.arange(self.longest))
        return back_BL >= 0 if window is None else (back_BL >= 0) & (back_BL < window)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The mask [1, B, 1, L] added to the scores of tails, for all layers of a step."""
        if window not in self._masks:
            near = self._in_window(window)[None, :, None, :]
            self._masks[window] = torch.zeros(near.shape, dtype=dtype).masked_fill_(~near, -torch.inf)
        return self._masks[window]

    def _mask_N1L(self, window: int | None) -> Tensor:
        if window is None and self._mask_BKL is not None:
            return torch.from_numpy(self._mask_BKL).flatten(0, 1)[:, None, : self.longest]
        return self._mask(window, torch.float32)[0].repeat_interleave(self.kv_heads, 0)

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


def tail_columns(length: int) -> int:
    """Columns for tails of that length, with room to grow."""
    return max(length + 128, length * 5 // 4)


def reads_segments_repeatedly(plan: AttentionPlan, cache: KVCache) -> bool:
    """Whether reading shared segments once for each of their rows would take long."""
    return plan.repeated_reads() * cache.kv[0][:, :, 0].nbytes > _MAX_INLINE_BYTES


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


def _batched_matmul_attention(q_NGD: Tensor, k_NLD: Tensor, v_NLD: Tensor, mask_N1L: Tensor, scale: float) -> Tensor:
    """Attention as products of small matrices, N of them, in float32."""
    weights_NGL = torch.baddbmm(mask_N1L, q_NGD, k_NLD.transpose(1, 2), alpha=scale).softmax(-1)
    return torch.bmm(weights_NGL, v_NLD)


def _stack_kv(k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    return torch.stack([k_TKD, v_TKD]).transpose(1, 2)


def _partial_from_lse(top: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Partial attention whose sum of exponentials is contained in `top`."""
    return top.float(), torch.ones_like(top, dtype=torch.float32), mixed.float()
