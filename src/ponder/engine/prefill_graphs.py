"""Prefills as CUDA graphs, each for numbers of tokens up to a power of two, or above 2,048 a multiple of 1,024.

A short prompt takes the device less than a millisecond, and the host ten times as long to launch its kernels one by
one, while everyone who decodes waits. Of a small network, long prompts too take the host as long as the device. Tokens
that fill up a graph's number write to the null slot and are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ponder.engine import fused_forward
from ponder.engine.adapter_columns import MERGED, AdapterColumns
from ponder.engine.fused_forward import PrefillInputs
from ponder.engine.fused_weights import FusedWeights
from ponder.engine.graph_buffers import copy_to_device_async
from ponder.engine.graph_capture import capture, shared_pool, side_stream
from ponder.engine.kv_cache import KVCache
from ponder.engine.scheduler import PrefillChunk
from ponder.nets.power_of_two import next_power_of_two

_MIN_TOKENS, _MAX_TOKENS = 16, 8192
_MANY_TOKENS, _MULTIPLE = 2048, 1024  # above them, a power of two would compute too many tokens in vain
_MAX_CHUNKS = 1024
_MAX_TABLE = 1 << 16  # slots that the tokens of a prefill may see, those of each chunk counted
_MAX_WORK = 1.2e12  # tokens times parameters; of more, the kernels take longer than their launches


class PrefillGraphs:
    def __init__(
        self, weights: FusedWeights, columns: AdapterColumns, cache: KVCache, null_slot: int, parameters: int
    ) -> None:
        self.weights, self.columns, self.cache, self.null_slot = weights, columns, cache, null_slot
        self.max_tokens = min(_MAX_TOKENS, int(_MAX_WORK / max(1, parameters)))
        self._integers = torch.zeros(3 * _MAX_TOKENS, dtype=torch.int64, device=cache.device)
        self._table = torch.zeros(4 * _MAX_TOKENS + _MAX_TABLE, dtype=torch.int32, device=cache.device)
        # by number of tokens, and what the adapter is read from (see AdapterColumns.prepare)
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def fits(self, chunks: Sequence[PrefillChunk]) -> bool:
        if fused_forward.shows_pictures(self.weights, chunks):  # what a tower sees is no matter of a graph
            return False
        tokens = sum(chunk.stop - chunk.start for chunk in chunks)
        seen = sum(chunk.position + chunk.stop - chunk.start for chunk in chunks)
        return _graph_tokens(tokens) <= self.max_tokens and seen <= _MAX_TABLE and len(chunks) <= _MAX_CHUNKS

    def run(self, chunks: Sequence[PrefillChunk], adapter_key: int) -> Tensor:
        """Compute keys and values of these chunks; returns the hidden states [T, E] after the last norm, which the next
        run overwrites."""
        plan = fused_forward.plan_prefill(self.weights, chunks)
        tokens, rows = len(plan.tokens_T), _graph_tokens(len(plan.tokens_T))
        inputs = self._write(plan, rows)
        adapters = MERGED if adapter_key else None

        def once() -> Tensor:
            return fused_forward.prefill(self.weights, self.cache, inputs, adapters)

        if self.cache.device.type != "cuda":  # Triton's interpreter has no graphs
            return once()[:tokens]
        key = (rows, adapter_key)
        if key not in self._graphs:
            self._graphs = {k: graph for k, graph in self._graphs.items() if self.columns.is_current(k[1])}
            with side_stream(self.cache.device):
                once()  # compiles the kernels and lets cuBLAS choose its own
                side = torch.cuda.current_stream()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with capture(graph, self.cache.device, shared_pool(g for g, _ in self._graphs.values())):
                hidden = once()
            self._graphs[key] = graph, hidden
        graph, hidden = self._graphs[key]
        graph.replay()
        return hidden[:tokens]

    def _write(self, plan: PrefillInputs, rows: int) -> PrefillInputs:
        """The plan in the buffers that the graph of so many rows reads."""
        tokens, items = len(plan.tokens_T), len(plan.items_I4)
        most = min(rows, rows // fused_forward.tokens_per_item(self.weights) + _MAX_CHUNKS)  # items
        integers = np.zeros((3, rows), np.int64)
        integers[1] = self.null_slot
        integers[:, :tokens] = plan.tokens_T, plan.slots_T, plan.positions_T
        table = np.zeros(4 * most + len(plan.table), np.int32)  # an item of zeros has no tokens
        table[: 4 * items], table[4 * most :] = plan.items_I4.ravel(), plan.table
        copy_to_device_async(integers.ravel(), self._integers[: 3 * rows])
        copy_to_device_async(table, self._table[: len(table)])
        tokens_T, slots_T, positions_T = self._integers[: 3 * rows].view(3, rows)
        items_I4 = self._table[: 4 * most].view(most, 4)
        return PrefillInputs(tokens_T, slots_T, positions_T, items_I4, self._table[4 * most :])


def _graph_tokens(tokens: int) -> int:
    return -(-tokens // _MULTIPLE) * _MULTIPLE if tokens > _MANY_TOKENS else max(_MIN_TOKENS, next_power_of_two(tokens))
