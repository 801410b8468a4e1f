"""Buffers that CUDA graphs read and write: tables of rows and their shared segments, and space for results.

Shapes as in triton_kernels.py.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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


def max_shared_items(rows: int) -> int:
    """Space for shared segments in a batch of this size; if there are more, they are made longer."""
    return 4 * rows + _MIN_SHARED_ITEMS


def fit_plan_to_kernels(plan: AttentionPlan, bucket: int, token_bytes: int) -> None:
    """Change a plan to what the kernels read fastest. `token_bytes`: size of one token in one layer."""
    _inline_short_segments(plan, token_bytes)
    _split_long_tails(plan)
    if sum(len(segment.rows) for segment in plan.shared) > max_shared_items(bucket):
        plan.shared = _limit_sharing_depth(plan.shared)


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
        self.splits = 1  # programs that read a row's tail
        self.last_tokens, self.positions, self.tail_starts = (empty(rows, kind=torch.int64) for _ in range(3))
        self.tail_slots = empty(rows, _max_tail_slots(), kind=whole).fill_(slots)  # the null slot
        self.temperature, self.greedy = torch.ones(rows, device=device), empty(rows, kind=whole)
        self.top_k, self.top_p, self.min_p = empty(rows, kind=whole), self.temperature.clone(), empty(rows, kind=real)
        self.min_logit = empty(rows, kind=real)
        self.max_steps = LAUNCHES_PER_WHOLE * STEPS_PER_LAUNCH  # of one launch
        self.uniforms = empty(rows, self.max_steps, kind=torch.float64)
        self.tokens, self.logprobs = empty(rows, self.max_steps, kind=whole), empty(rows, self.max_steps, kind=real)
        self.steps = empty(MAX_PARTS, 4, kind=whole)  # of each part; so many, since kernels read aligned addresses
        self.step = self.steps[0, :1]
        self.adapters = AdapterRows.zeros(rows, device)
        # shared segments: items, entries (an item and a row), and the partial attention of each entry
        self.max_shared_items = max_shared_items(rows)
        self.items, self.counts = empty(self.max_shared_items, 5, kind=whole), empty(1, kind=whole)
        self.entry_rows = empty(self.max_shared_items, kind=whole)
        self.row_entries, self.row_entry_ends = empty(self.max_shared_items, kind=whole), empty(rows + 1, kind=whole)
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

    def part(self, index: int, rows: int) -> GraphBuffers:
        """A view of the rows from `index * rows` on, without what is shared and what programs of a tail pass on."""
        view = copy.copy(self)
        for name in _ROW_TENSORS:
            setattr(view, name, getattr(self, name)[index * rows : (index + 1) * rows])
        view.rows, view.splits, view.step = rows, 1, self.steps[index, :1]
        return view

    def write_shared(self, plan: AttentionPlan, bucket: int) -> bool:
        """Write the shared segments of a plan, split for the programs. True: the slot table was replaced."""
        run, per = _KEYS_PER_PROGRAM, max(1, QUERIES_PER_PROGRAM // self.group)
        while True:
            items: list[tuple[int, ...]] = []
            entries: list[int] = []
            slots: list[Slots] = []
            at = 0
            for segment in plan.shared:
                segment_slots = segment.slots
                for first in range(0, len(segment_slots), run):
                    slots.append(segment_slots[first : first + run])
                    for i in range(0, len(segment.rows), per):
                        readers = segment.rows[i : i + per]
                        items.append((at, len(slots[-1]), segment.position + first, len(entries), len(readers)))
                        entries += readers
                    at += len(slots[-1])
            if max(len(items), len(entries)) <= max_shared_items(bucket):
                break
            assert run < at, "more rows share segments than there is space for"
            run *= 2  # fewer, longer items
        if too_small := at > len(self.slots):
            self.slots = torch.zeros(2 * at, device=self.slots.device, dtype=torch.int32)
        self.counts.fill_(len(items))
        if items:
            copy_to_device_async(np.asarray(items, np.int32), self.items[: len(items)])
            rows = np.asarray(entries)
            copy_to_device_async(rows.astype(np.int32), self.entry_rows[: len(rows)])
            order = np.argsort(rows, kind="stable")
            copy_to_device_async(order.astype(np.int32), self.row_entries[: len(rows)])
            copy_to_device_async(np.concatenate(slots), self.slots[:at])
            ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=bucket))])
        else:
            ends = np.zeros(bucket + 1)
        copy_to_device_async(ends.astype(np.int32), self.row_entry_ends[: bucket + 1])
        return too_small


def copy_to_device_async(values: NDArray[Any], buffer: Tensor) -> Tensor:
    """Copy to the device without waiting for it."""
    host = torch.from_numpy(values)
    return buffer.copy_(host.pin_memory() if buffer.is_cuda else host, non_blocking=True)
