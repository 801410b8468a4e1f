"""A batch in fixed buffers, and its decoding steps as CUDA graphs, one for each batch size.

The kernels update what changes between steps (positions, newest tokens). What changes when sequences join or leave is
copied in.

Shapes as in triton_kernels.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine import decode_forward, fused_forward
from ponder.engine.adapter_columns import MERGED, AdapterColumns, AdapterRows, PassAdapters
from ponder.engine.adapters import node_adapter
from ponder.engine.attention_plan import plan_attention
from ponder.engine.fused_weights import FusedWeights
from ponder.engine.graph_buffers import (
    STEPS_PER_LAUNCH,
    GraphBuffers,
    copy_to_device_async,
    fit_plan_to_kernels,
    tail_splits,
)
from ponder.engine.graph_capture import capture, shared_pool, side_stream
from ponder.engine.kv_cache import KVCache, bytes_per_token
from ponder.engine.request import SequenceState
from ponder.engine.scheduler import PrefillChunk

_NO_TRUNCATION = (0, 1.0, 0.0)  # no top-k, top-p or min-p
GRAPH_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class GraphBatch:
    def __init__(
        self,
        weights: FusedWeights,
        columns: AdapterColumns,
        cache: KVCache,
        buffers: GraphBuffers,
        null_slot: int,
        samples: bool,
    ) -> None:
        self.weights, self.columns, self.cache, self.buffers = weights, columns, cache, buffers
        self.null_slot, self.samples = null_slot, samples
        self.row_of: dict[SequenceState, int] = {}  # row of each sequence in the buffers
        self.bucket, self.parts = 0, 1
        # by batch size, shared segments, truncation, what the adapters are read from (see AdapterColumns.prepare),
        # programs of a tail, parts of the rows and which of them
        self.graphs: dict[tuple[int, bool, bool, int, int, int, int], torch.cuda.CUDAGraph] = {}
        self._streams: list[Any] = []  # of all parts but the first
        self._has_shared = self._has_truncation = False
        self._adapter_key = 0
        self._adapter_layout = 0  # for which the rows' columns were written; 0: not yet
        self._lengths = self._starts = np.empty(0, np.int64)  # of each row's tail

    def can_continue(self, seqs: Sequence[SequenceState], steps: int) -> bool:
        """Whether these sequences can continue from their rows in the buffers."""
        return (
            all(seq in self.row_of for seq in seqs)
            and _graph_batch_size(len(seqs)) == self.bucket
            and int(self._lengths.max()) + steps <= self.buffers.tail_slots.shape[1]
        )

    def lay_out(
        self, seqs: Sequence[SequenceState], steps: int, ahead: int = 0, adapter_key: int = 0
    ) -> NDArray[np.int64]:
        """Write sequences and the slots of their next tokens into the buffers; returns the row of each. Only the device
        knows the tokens that are `ahead`. `adapter_key`: of the pass, see AdapterColumns.prepare."""
        b, continuing = self.buffers, self.can_continue(seqs, steps)
        assert continuing or not ahead
        if not continuing:
            self._rebuild(seqs, adapter_key <= 0)
        self._retire(seqs)
        places = np.asarray([self.row_of[seq] for seq in seqs])
        self._adapter_key = adapter_key
        if adapter_key > 0 and self._adapter_layout != self.columns.layout:
            self._write_adapters(seqs)
        if not ahead:
            newest, positions = np.zeros(self.bucket, np.int64), np.zeros(self.bucket, np.int64)
            newest[places] = [seq.newest_token for seq in seqs]
            positions[places] = (self._starts + self._lengths)[places] - (0 if continuing else steps)
            copy_to_device_async(newest, b.last_tokens[: self.bucket])
            copy_to_device_async(positions, b.positions[: self.bucket])
        if continuing:
            fresh = np.full((self.bucket, steps), self.null_slot, np.int32)
            newest_slots = b"".join([seq.slots[-steps:].tobytes() for seq in seqs])
            fresh[places] = np.frombuffer(newest_slots, np.int32).reshape(-1, steps)
            columns = (b.positions - b.tail_starts)[: self.bucket, None] + torch.arange(
                steps, device=b.tail_slots.device
            )
            b.tail_slots[: self.bucket].scatter_(
                1, columns, copy_to_device_async(fresh, torch.empty_like(columns, dtype=torch.int32))
            )
            self._lengths[places] += steps
        b.splits = tail_splits(self.bucket, int(self._lengths.max()))
        return places

    def _retire(self, seqs: Sequence[SequenceState]) -> None:
        """Rows without a sequence start at position 0 in every step and write to the null slot."""
        b = self.buffers
        if len(self.row_of) > len(seqs):
            here = set(seqs)
            for seq in [seq for seq in self.row_of if seq not in here]:
                place = self.row_of.pop(seq)
                self._lengths[place] = self._starts[place] = 0
        if len(self.row_of) == self.bucket:
            return
        empty = np.setdiff1d(np.arange(self.bucket), np.fromiter(self.row_of.values(), np.int64))
        index = copy_to_device_async(empty, torch.empty(len(empty), dtype=torch.int64, device=b.positions.device))
        b.positions.index_fill_(0, index, 0)
        b.tail_starts.index_fill_(0, index, 0)

    def _rebuild(self, seqs: Sequence[SequenceState], can_divide: bool) -> None:
        """The batch has changed: write what each row reads."""
        self.bucket = bucket = _graph_batch_size(len(seqs))
        self.parts = decode_forward.parts_for(self.weights, bucket) if can_divide else 1
        b, c, plan = self.buffers, self.weights.config, plan_attention(seqs)
        fit_plan_to_kernels(plan, bucket, bytes_per_token(c, self.cache.kv[0].dtype) // c.layers, self.parts)
        self.row_of, self._adapter_layout = {seq: i for i, seq in enumerate(seqs)}, 0
        for seq in seqs:
            seq.prefill_tokens += not seq.num_tokens
        self._lengths, self._starts = np.zeros(bucket, np.int64), np.zeros(bucket, np.int64)
        self._lengths[: len(seqs)], self._starts[: len(seqs)] = [len(tail) for tail in plan.tails], plan.tail_starts
        table = np.full((bucket, max(STEPS_PER_LAUNCH, int(self._lengths.max()))), self.null_slot, np.int32)
        table[np.arange(table.shape[1]) < self._lengths[:, None]] = np.concatenate(plan.tails)
        copy_to_device_async(table, b.tail_slots[:bucket, : table.shape[1]])
        copy_to_device_async(self._starts, b.tail_starts[:bucket])
        if self.samples:
            self._write_sampling_params(seqs)
        self._has_shared = bool(plan.shared)
        if self._has_shared and b.write_shared(plan, bucket, self.parts):
            self.graphs = {k: g for k, g in self.graphs.items() if not k[1]}  # they read the old table

    def _write_adapters(self, seqs: Sequence[SequenceState]) -> None:
        """Write the columns of each row's adapter: the batch or the columns have changed."""
        b, columns = self.buffers, self.columns
        for table, buffer in zip(columns.tables([seq.adapter for seq in seqs]), b.adapters.tensors(), strict=True):
            whole = np.zeros(self.bucket, table.dtype)
            whole[[self.row_of[seq] for seq in seqs]] = table
            copy_to_device_async(whole, buffer[: self.bucket])
        self._adapter_layout = columns.layout

    def _write_sampling_params(self, seqs: Sequence[SequenceState]) -> None:
        """Write the sampling parameters of each row."""
        b, bucket = self.buffers, self.bucket
        temperature, greedy = np.ones(bucket, np.float32), np.zeros(bucket, np.int32)
        temperature[: len(seqs)] = [seq.sampling.temperature or 1.0 for seq in seqs]
        greedy[: len(seqs)] = [seq.sampling.temperature == 0 for seq in seqs]
        copy_to_device_async(temperature, b.temperature[:bucket])
        copy_to_device_async(greedy, b.greedy[:bucket])
        cuts = [
            (s.top_k, s.top_p, s.min_p) if s.temperature else _NO_TRUNCATION for s in (seq.sampling for seq in seqs)
        ]
        self._has_truncation = any(cut != _NO_TRUNCATION for cut in cuts)
        if self._has_truncation:
            padded = np.asarray(cuts + [_NO_TRUNCATION] * (bucket - len(seqs)))
            for column, buffer in zip(padded.T, (b.top_k, b.top_p, b.min_p), strict=True):
                copy_to_device_async(np.ascontiguousarray(column), buffer[:bucket])

    def run(self, chunks: Sequence[PrefillChunk] = (), steps: int = 1) -> Tensor | None:
        """Steps of all rows. The first, if it has prefill chunks, which differ from step to step, runs without a graph;
        returns their hidden states. Parts of the rows run at the same time, each in a stream of its own, and wait for
        each other at the end alone."""
        b, parts, hidden = self.buffers, range(self.parts), None
        if chunks:
            hidden, *_ = [self._run_part(part, () if part else chunks) for part in parts]
            steps -= 1
        if not b.logits.is_cuda:  # Triton's interpreter has no graphs
            for _ in range(steps):
                for part in parts:
                    self._run_part(part)
            return hidden
        graphs = [self._graph(part) for part in parts]
        main = torch.cuda.current_stream(b.logits.device)
        while len(self._streams) < len(parts) - 1:
            self._streams.append(torch.cuda.Stream(b.logits.device))
        streams = [main, *self._streams[: len(parts) - 1]]
        for stream in streams[1:]:
            stream.wait_stream(main)
        for _ in range(steps):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        for stream in streams[1:]:
            main.wait_stream(stream)
        return hidden

    def _buffers_of(self, part: int) -> GraphBuffers:
        return self.buffers if self.parts == 1 else self.buffers.part(part, self.parts, self.bucket)

    def _run_part(self, part: int, chunks: Sequence[PrefillChunk] = ()) -> Tensor:
        b, rows = self._buffers_of(part), self.bucket // self.parts
        return fused_forward.decode(
            self.weights, self.cache, b, rows, self.samples, self._has_shared, self._has_truncation, chunks,
            self._pass_adapters(b, rows, chunks),
        )  # fmt: skip

    def _graph(self, part: int) -> torch.cuda.CUDAGraph:
        """A step of a part of the rows; captured if it is new."""
        splits = self.buffers.splits
        key = (self.bucket, self._has_shared, self._has_truncation, self._adapter_key, splits, self.parts, part)
        if key not in self.graphs:
            b = self._buffers_of(part)
            self.graphs = {k: g for k, g in self.graphs.items() if self.columns.is_current(k[3])}
            changed = (b.positions, b.last_tokens, b.step)
            saved = [x.clone() for x in changed]
            with side_stream(b.logits.device):
                self._run_part(part)  # compiles the kernels and lets cuBLAS choose its own
                for x, old in zip(changed, saved, strict=True):
                    x.copy_(old)
                side = torch.cuda.current_stream()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            pool = shared_pool(g for k, g in self.graphs.items() if k[-1] == part)  # parts run at the same time
            with capture(graph, b.logits.device, pool, part):
                self._run_part(part)
            self.graphs[key] = graph
        return self.graphs[key]

    def _pass_adapters(self, b: GraphBuffers, rows: int, chunks: Sequence[PrefillChunk]) -> PassAdapters:
        """Adapters of the rows, and of the chunks' tokens after them."""
        if self._adapter_key <= 0:
            return MERGED if self._adapter_key else None
        own: AdapterRows = b.adapters.head(rows)
        if not chunks:
            return own
        names, sizes = [node_adapter(chunk.node) for chunk in chunks], [chunk.stop - chunk.start for chunk in chunks]
        return own.append(self.columns.rows(names, sizes))


def _graph_batch_size(seqs: int) -> int:
    return next(b for b in GRAPH_BATCH_SIZES if b >= seqs)
