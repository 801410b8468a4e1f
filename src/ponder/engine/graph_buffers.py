"""Buffers that CUDA graphs read and write: tables of rows and their shared segments, and space for results.

Shapes as in triton_kernels.py.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine.adapter_columns import AdapterRows
from ponder.engine.attention_plan import AttentionPlan, KVSegment, inline_segments, split_tail
from ponder.engine.radix_tree import Slots
from ponder.nets.decoder import Decoder
from ponder.nets.power_of_two import next_power_of_two

MAX_PARTS = 8  # of a step that run at the same time
_ALIGNED = 4  # integers between those of two parts: kernels are compiled for addresses of 16 bytes
STEPS_PER_LAUNCH = 16  # steps of one launch; a finished sequence is noticed after half of them, on average
LAUNCHES_PER_WHOLE = 2  # launches that become one where all sequences end in them
VOCAB_CHUNK_SIZE = 2048  # tokens of the vocabulary that one program samples from
QUERIES_PER_PROGRAM = 32  # queries (rows times heads of a group) that read a shared segment together
_KEYS_PER_PROGRAM = 512  # keys of a shared segment that one program reads
_MAX_TAIL_KEYS = 4096  # keys of a tail; of a longer one, all but the last keys become a segment
# Keys of a tail that one program reads while others read the rest, by the largest number of rows.
_SPLIT_KEYS = {32: 256, 64: 512, 256: 1024, 512: 2048, 1024: 4096}
_MIN_SHARED_ITEMS = 64  # shared segments for which there is always space
_MIN_SAVED_BYTES = 64 << 20  # bytes of a layer that sharing must save to be worth another kernel in every layer

_ROW_TENSORS = (
    "last_tokens", "positions", "tail_starts", "tail_slots", "temperature", "greedy", "top_k", "top_p", "min_p",
    "min_logit", "uniforms", "tokens", "logprobs", "logits", "chunk_max", "chunk_sum", "chunk_argmax", "arrivals",
)  # fmt: skip
_SHARED_TENSORS = ("items", "entry_rows", "row_entries", "partial_values", "partial_max", "partial_sum")
_SPLIT_TENSORS = ("split_values", "split_max", "split_sum")


def max_shared_items(rows: int) -> int:
    """Space for shared segments in a batch of this size; if there are more, they are made longer."""
    return 4 * rows + _MIN_SHARED_ITEMS


def fit_plan_to_kernels(plan: AttentionPlan, bucket: int, token_bytes: int, parts: int = 1) -> None:
    """Change a plan to what the kernels read fastest. `token_bytes`: size of one token in one layer; `parts`: of the
    rows, each of which reads segments of its own."""
    _inline_short_segments(plan, token_bytes)
    _split_long_tails(plan)
    rows, readers = bucket // parts, [0] * parts
    for segment in plan.shared:
        for part, own in _divide_rows(segment.rows, rows):
            readers[part] += len(own)
    if max(readers) > max_shared_items(rows):
        plan.shared = _limit_sharing_depth(plan.shared)


def _divide_rows(rows: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
    """Rows, which are sorted, by the part that they belong to, counted from its first; `size`: rows of a part."""
    first = 0
    while first < len(rows):
        part = rows[first] // size
        last = bisect_left(rows, (part + 1) * size, first)
        yield part, [row - part * size for row in rows[first:last]]
        first = last


def _inline_short_segments(plan: AttentionPlan, token_bytes: int) -> None:
    """Short segments with few rows are read by each of them: the second reader finds them in the GPU's cache, and one
    kernel less runs."""
    has_large_saving = plan.repeated_reads() * token_bytes >= _MIN_SAVED_BYTES

    def pays(segment: KVSegment) -> bool:
        return len(segment) >= _KEYS_PER_PROGRAM or (
            has_large_saving and segment.repeated_reads() >= _KEYS_PER_PROGRAM // 2
        )

    inline_segments(plan, pays)


def _split_long_tails(plan: AttentionPlan) -> None:
    """Long tails become segments that are read in parallel, so that few rows keep the whole device busy."""
    for r, tail in enumerate(plan.tails):
        cut = len(tail) - 2 * STEPS_PER_LAUNCH  # the last slots are not written yet
        if cut > 0 and len(tail) > _MAX_TAIL_KEYS:
            split_tail(plan, r, cut)


def _limit_sharing_depth(shared: Sequence[KVSegment]) -> list[KVSegment]:
    """Of a deep tree, only segments near the root stay shared: a row reads three of them, then one of its own."""
    still_shared: list[KVSegment] = []
    own: dict[int, KVSegment] = {}
    depth: dict[int, int] = {}
    for segment in sorted(shared, key=lambda s: s.position):
        deep = depth.get(segment.rows[0], 0)  # all readers of this segment have read the same before it
        if deep < 3:
            still_shared.append(segment)
            depth |= dict.fromkeys(segment.rows, deep + 1)
        else:
            for row in segment.rows:
                own.setdefault(row, KVSegment([row], segment.position)).extend(segment)
    return [*still_shared, *own.values()]


def split_keys(rows: int) -> int:
    """Keys of a tail that one program reads, by rows: few rows with long tails keep the device busy too."""
    return next((keys for most, keys in _SPLIT_KEYS.items() if rows <= most), max(_SPLIT_KEYS.values()))


def tail_splits(rows: int, length: int) -> int:
    """Programs that read a tail of this length. Few different numbers, since each needs a graph."""
    needed = -(-length // split_keys(rows))
    return 1 if needed <= 1 else min(_max_splits(rows), max(8, next_power_of_two(needed)))


def _max_splits(rows: int) -> int:
    return -(-_max_tail_slots() // split_keys(rows))


def _max_tail_slots() -> int:
    return _MAX_TAIL_KEYS + 64 * STEPS_PER_LAUNCH


class GraphBuffers:
    """Inputs and outputs of the graphs. Scratch space and logits, by far the largest part, are shared with `other`."""

    def __init__(self, net: Decoder, rows: int, slots: int, other: GraphBuffers | None = None) -> None:
        c, device, dtype = net.config, net.device, net.dtype

        def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=device, dtype=kind)

        whole, real = torch.int32, torch.float32
        self.rows = rows
        self.splits, self.keys_per_split = 1, 0  # programs that read a row's tail; 0: as many keys as by `split_keys`
        self.last_tokens, self.positions, self.tail_starts = (empty(rows, kind=torch.int64) for _ in range(3))
        self.tail_slots = empty(rows, _max_tail_slots(), kind=whole).fill_(slots)  # the null slot
        self.temperature, self.greedy = torch.ones(rows, device=device), empty(rows, kind=whole)
        self.top_k, self.top_p, self.min_p = empty(rows, kind=whole), self.temperature.clone(), empty(rows, kind=real)
        self.min_logit = empty(rows, kind=real)
        self.max_steps = LAUNCHES_PER_WHOLE * STEPS_PER_LAUNCH  # of one launch
        self.uniforms = empty(rows, self.max_steps, kind=torch.float64)
        self.tokens, self.logprobs = empty(rows, self.max_steps, kind=whole), empty(rows, self.max_steps, kind=real)
        self.steps = empty(MAX_PARTS, _ALIGNED, kind=whole)  # of each part
        self.step = self.steps[0, :1]
        self.adapters = AdapterRows.zeros(rows, device)
        # shared segments: items, entries (an item and a row), and the partial attention of each entry
        self.max_shared_items = max_shared_items(rows) + (MAX_PARTS - 1) * _MIN_SHARED_ITEMS
        self.items = empty(self.max_shared_items, 5, kind=whole)
        self.item_counts = empty(MAX_PARTS, _ALIGNED, kind=whole)  # of each part
        self.counts = self.item_counts[0, :1]
        self.entry_rows = empty(self.max_shared_items, kind=whole)
        self.row_entries = empty(self.max_shared_items, kind=whole)
        self.row_entry_ends = empty(rows + MAX_PARTS * _ALIGNED, kind=whole)
        self.slots = empty(slots, kind=whole)  # each is in one segment, except where a deep tree is not shared
        self.group = c.heads // c.kv_heads
        if other is None:
            self.logits = empty(rows, c.vocab, kind=real)
            chunks = -(-c.vocab // VOCAB_CHUNK_SIZE)
            self.chunk_max, self.chunk_sum = (empty(rows, chunks, kind=real) for _ in range(2))
            self.chunk_argmax = empty(rows, chunks, kind=whole)
            self.partial_values = empty(self.max_shared_items, c.heads, c.head_dim, kind=real)
            self.partial_max, self.partial_sum = (empty(self.max_shared_items, c.heads, kind=real) for _ in range(2))
            parts = max(n * _max_splits(n) for n in {rows, *(most for most in _SPLIT_KEYS if most < rows)})
            self.split_values = empty(parts, c.heads, c.head_dim, kind=real)
            self.split_max, self.split_sum = (empty(parts, c.heads, kind=real) for _ in range(2))
            self.arrivals = empty(rows, c.kv_heads, kind=whole)
        else:
            self.logits, self.chunk_max, self.chunk_sum, self.chunk_argmax = (
                other.logits,
                other.chunk_max,
                other.chunk_sum,
                other.chunk_argmax,
            )
            self.partial_values, self.partial_max, self.partial_sum = (
                other.partial_values,
                other.partial_max,
                other.partial_sum,
            )
            self.split_values, self.split_max, self.split_sum, self.arrivals = (
                other.split_values,
                other.split_max,
                other.split_sum,
                other.arrivals,
            )

    def part(self, index: int, parts: int, bucket: int) -> GraphBuffers:
        """A view of one of so many parts of the rows, with the shared segments that were written for it."""
        rows = bucket // parts
        items, splits = max_shared_items(rows), rows * self.splits
        view = copy.copy(self)
        for size, names in ((rows, _ROW_TENSORS), (items, _SHARED_TENSORS), (splits, _SPLIT_TENSORS)):
            for name in names:
                setattr(view, name, getattr(self, name)[index * size : (index + 1) * size])
        view.rows, view.keys_per_split, view.step = rows, split_keys(bucket), self.steps[index, :1]
        view.counts, view.row_entry_ends = self.item_counts[index, :1], self.row_entry_ends[index * (rows + _ALIGNED) :]
        view.adapters = AdapterRows(*(x[index * rows : (index + 1) * rows] for x in self.adapters.tensors()))
        return view

    def write_shared(self, plan: AttentionPlan, bucket: int, parts: int = 1) -> bool:
        """Write the shared segments of a plan, split for the programs, and for each part of the rows those that it
        reads. True: the slot table was replaced."""
        run, per = _KEYS_PER_PROGRAM, max(1, QUERIES_PER_PROGRAM // self.group)
        size, most = bucket // parts, max_shared_items(bucket // parts)
        while True:
            items: list[list[tuple[int, ...]]] = [[] for _ in range(parts)]
            entries: list[list[int]] = [[] for _ in range(parts)]
            slots: list[Slots] = []
            at = 0
            for segment in plan.shared:
                segment_slots = segment.slots
                readers = list(_divide_rows(segment.rows, size))
                for first in range(0, len(segment_slots), run):
                    slots.append(segment_slots[first : first + run])
                    place = segment.position + first
                    for part, own in readers:
                        for i in range(0, len(own), per):
                            rows = own[i : i + per]
                            items[part].append((at, len(slots[-1]), place, len(entries[part]), len(rows)))
                            entries[part] += rows
                    at += len(slots[-1])
            if max(max(len(i), len(e)) for i, e in zip(items, entries, strict=True)) <= most:
                break
            assert run < at, "more rows share segments than there is space for"
            run *= 2  # fewer, longer items
        if too_small := at > len(self.slots):
            self.slots = torch.zeros(2 * at, device=self.slots.device, dtype=torch.int32)
        for part, (own_items, own_entries) in enumerate(zip(items, entries, strict=True)):
            self._write_items(part, size, own_items, own_entries)
        if slots:
            copy_to_device_async(np.concatenate(slots), self.slots[:at])
        return too_small

    def _write_items(self, part: int, size: int, items: list[tuple[int, ...]], entries: list[int]) -> None:
        """Items of a part of the rows, which has so many, and which rows read them."""
        self.item_counts[part].fill_(len(items))
        first, rows = part * max_shared_items(size), np.asarray(entries, np.int32)
        if items:
            copy_to_device_async(np.asarray(items, np.int32), self.items[first : first + len(items)])
            copy_to_device_async(rows, self.entry_rows[first : first + len(rows)])
            order = np.argsort(rows, kind="stable").astype(np.int32)
            copy_to_device_async(order, self.row_entries[first : first + len(rows)])
        ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=size))]).astype(np.int32)
        begin = part * (size + _ALIGNED)
        copy_to_device_async(ends, self.row_entry_ends[begin : begin + len(ends)])


def copy_to_device_async(values: NDArray[Any], buffer: Tensor) -> Tensor:
    """Copy to the device without waiting for it."""
    host = torch.from_numpy(values)
    return buffer.copy_(host.pin_memory() if buffer.is_cuda else host, non_blocking=True)
