"""What captured passes read and write: tables of rows and of the runs they share, and room for what they compute.

Shapes as in kernels.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ponder.engine.attention_plan import AttentionPlan, KVSegment
from ponder.engine.radix_tree import Slots
from ponder.nets.decoder import Decoder

STEPS_PER_LAUNCH = 16  # passes between two looks: a text that ends is noticed after half as many, on average
VOCAB_CHUNK_SIZE = 2048  # of the vocabulary, when drawing
QUERIES_PER_PROGRAM = 32  # queries (rows times heads of a group) that read a shared run together
_KEYS_PER_PROGRAM = 512  # keys of a shared run that one program reads
_MAX_TAIL_KEYS = 1024  # keys that one row reads one after another; more are cut into runs, to be read side by side
_MIN_SHARED_ITEMS = 64  # shared runs for which there is always room
_MIN_SAVED_BYTES = 64 << 20  # bytes of a layer that sharing must save, to be worth a kernel more in every layer


def max_shared_items(rows: int) -> int:
    """Runs that are shared in a batch of so many rows; more are made longer until they are as few."""
    return 4 * rows + _MIN_SHARED_ITEMS


def fit_plan_to_kernels(made: AttentionPlan, bucket: int, token_bytes: int) -> None:
    """Make of a plan what a pass reads fastest. `token_bytes` is what one token takes in one layer."""
    _inline_short_segments(made, token_bytes)
    _split_long_tails(made)
    if sum(len(segment.rows) for segment in made.shared) > max_shared_items(bucket):
        made.shared = _limit_sharing_depth(made.shared)


def _inline_short_segments(made: AttentionPlan, token_bytes: int) -> None:
    """Short runs that are shared by few rows are read by each of them: the second reader finds them in the GPU's own
    cache, and a kernel less runs."""
    sizes = {id(s): sum(map(len, s.slot_runs)) for s in made.shared}
    saved = sum((len(s.rows) - 1) * sizes[id(s)] for s in made.shared) * token_bytes
    kept, cut = list[KVSegment](), set[int]()
    before: dict[int, list[Slots]] = {}
    for segment in sorted(made.shared, key=lambda s: s.position):
        size = sizes[id(segment)]
        worth = size >= _KEYS_PER_PROGRAM or (
            saved >= _MIN_SAVED_BYTES and (len(segment.rows) - 1) * size >= _KEYS_PER_PROGRAM // 2
        )
        if worth and cut.isdisjoint(segment.rows):
            kept.append(segment)
            continue
        for row in segment.rows:  # all that follows on their paths is read with it
            if row not in cut:
                cut.add(row)
                made.tail_starts[row] = segment.position
            before.setdefault(row, []).extend(segment.slot_runs)
    for row, parts in before.items():
        made.tails[row] = np.concatenate([*parts, made.tails[row]])
    made.shared = kept


def _split_long_tails(made: AttentionPlan) -> None:
    """Long tails become runs that are read side by side, so that few rows keep the whole device at work."""
    for r, tail in enumerate(made.tails):
        cut = len(tail) - 2 * STEPS_PER_LAUNCH  # the last slots are written yet
        if cut > 0 and len(tail) > _MAX_TAIL_KEYS:
            made.shared.append(KVSegment([r], made.tail_starts[r], [tail[:cut]]))
            made.tails[r], made.tail_starts[r] = tail[cut:], made.tail_starts[r] + cut


def _limit_sharing_depth(shared: Sequence[KVSegment]) -> list[KVSegment]:
    """Of a deep tree, only the runs next to its roots stay shared: a row reads three of them, then one of its own."""
    kept: list[KVSegment] = []
    own: dict[int, KVSegment] = {}
    depth: dict[int, int] = {}
    for segment in sorted(shared, key=lambda s: s.position):
        deep = depth.get(segment.rows[0], 0)  # all that read this run have read the same before it
        if deep < 3:
            kept.append(segment)
            depth |= dict.fromkeys(segment.rows, deep + 1)
        else:
            for row in segment.rows:
                own.setdefault(row, KVSegment([row], segment.position)).slot_runs += segment.slot_runs
    return [*kept, *own.values()]


class GraphBuffers:
    """What the graphs read and write. What only a pass itself needs, and its logits until they are looked at, lie where
    those of `beside` do: by far the most."""

    def __init__(self, net: Decoder, rows: int, slots: int, beside: GraphBuffers | None = None) -> None:
        c, device, dtype = net.config, net.device, net.dtype

        def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=device, dtype=kind)

        whole, real = torch.int32, torch.float32
        self.rows = rows
        self.last_tokens, self.positions, self.tail_starts = (empty(rows, kind=torch.int64) for _ in range(3))
        self.tail_slots = empty(rows, _MAX_TAIL_KEYS + 64 * STEPS_PER_LAUNCH, kind=whole).fill_(slots)  # the blank one
        self.temperature, self.greedy = torch.ones(rows, device=device), empty(rows, kind=whole)
        self.top_k, self.top_p, self.min_p = empty(rows, kind=whole), self.temperature.clone(), empty(rows, kind=real)
        self.min_logit = empty(rows, kind=real)
        self.uniforms = empty(rows, STEPS_PER_LAUNCH, kind=torch.float64)
        self.tokens, self.logprobs = empty(rows, STEPS_PER_LAUNCH, kind=whole), empty(rows, STEPS_PER_LAUNCH, kind=real)
        self.step = empty(1, kind=whole)
        # shared runs: as many items and entries as there may be, and for each entry a part of the attention
        self.max_shared_items = max_shared_items(rows)
        self.items, self.counts = empty(self.max_shared_items, 5, kind=whole), empty(1, kind=whole)
        self.entry_rows = empty(self.max_shared_items, kind=whole)
        self.row_entries, self.row_entry_ends = empty(self.max_shared_items, kind=whole), empty(rows + 1, kind=whole)
        self.slots = empty(slots, kind=whole)  # each is in one run, but where runs of a deep tree are not shared
        self.group = c.heads // c.kv_heads
        if beside is None:
            self.logits = empty(rows, c.vocab, kind=real)
            chunks = -(-c.vocab // VOCAB_CHUNK_SIZE)
            self.chunk_max, self.chunk_sum = (empty(rows, chunks, kind=real) for _ in range(2))
            self.chunk_argmax = empty(rows, chunks, kind=whole)
            self.partial_values = empty(self.max_shared_items, c.heads, c.head_dim, kind=real)
            self.partial_max, self.partial_sum = (empty(self.max_shared_items, c.heads, kind=real) for _ in range(2))
        else:
            self.logits, self.chunk_max, self.chunk_sum, self.chunk_argmax = (
                beside.logits,
                beside.chunk_max,
                beside.chunk_sum,
                beside.chunk_argmax,
            )
            self.partial_values, self.partial_max, self.partial_sum = (
                beside.partial_values,
                beside.partial_max,
                beside.partial_sum,
            )

    def write_shared(self, made: AttentionPlan, bucket: int) -> bool:
        """The shared runs of a plan, cut to what one program reads. True: the table of slots had to be replaced."""
        run, per = _KEYS_PER_PROGRAM, max(1, QUERIES_PER_PROGRAM // self.group)
        while True:
            items: list[tuple[int, ...]] = []
            entries: list[int] = []
            slots: list[Slots] = []
            at = 0
            for segment in made.shared:
                its = segment.slots
                for first in range(0, len(its), run):
                    slots.append(its[first : first + run])
                    for who in range(0, len(segment.rows), per):
                        readers = segment.rows[who : who + per]
                        items.append((at, len(slots[-1]), segment.position + first, len(entries), len(readers)))
                        entries += readers
                    at += len(slots[-1])
            if max(len(items), len(entries)) <= max_shared_items(bucket):
                break
            assert run < at, "more rows share runs than there are places"
            run *= 2  # fewer, longer runs
        if small := at > len(self.slots):
            self.slots = torch.zeros(2 * at, device=self.slots.device, dtype=torch.int32)
        self.counts.fill_(len(items))
        if items:
            device = self.items.device
            self.items[: len(items)].copy_(torch.tensor(items, dtype=torch.int32))
            rows = np.asarray(entries)
            self.entry_rows[: len(rows)].copy_(torch.from_numpy(rows.astype(np.int32)))
            order = np.argsort(rows, kind="stable")
            self.row_entries[: len(rows)].copy_(torch.from_numpy(order.astype(np.int32)))
            self.slots[:at].copy_(torch.from_numpy(np.concatenate(slots)).to(device))
            ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=bucket))])
        else:
            ends = np.zeros(bucket + 1)
        self.row_entry_ends[: bucket + 1].copy_(torch.from_numpy(ends.astype(np.int32)))
        return small
