"""Micro-batches of a small network as CUDA graphs: one for the forward pass, one for the backward pass.

A layer of a small network takes the GPU a millisecond, and the host longer than that to launch its kernels forward and
backward. A graph is launched at once. It is captured for one size (`GraphSizes`), which micro-batches are padded to,
with tokens that nothing reads and keys that only those see. The loss stands between both graphs and is computed as
without them, on the real tokens only, so any objective can have it.

The first two micro-batches of a size run without a graph, as a rehearsal: kernels are compiled, and libraries choose
theirs. Graphs are captured before the next optimiser step, and serve micro-batches that are a little smaller too. They
share the memory of one micro-batch, since one runs at a time. Shapes: T tokens, G gathered keys, N read tokens.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ponder.engine.graph_capture import capture, capture_lock, free_on_demand
from ponder.nets import tree_attention
from ponder.nets.decoder import Decoder
from ponder.nets.power_of_two import next_power_of_two
from ponder.nets.varlen_attention import UnbranchedRuns, VarlenTreeAttention
from ponder.train.activation_memory import kept_bytes_per_token
from ponder.train.chunked_lm_head import token_logprobs
from ponder.train.pack import PackedBatch

MAX_SIZES = 8  # that have graphs or are rehearsed at a time
REHEARSALS = 2
MAX_EXCESS = 1.125  # tokens of a graph over those of the least size that holds a micro-batch
MAX_LAYER_WORK = 5e10  # tokens times a layer's parameters; of more, the kernels take longer than their launches
MEMORY_SHARE = 8  # graphs may keep one part in so many of the GPU's memory
_MIN_PADDING, _PADDING_RUN = 64, 128  # tokens; a run of padding has at most so many

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """What is fixed in a graph."""

    tokens: int
    readings: int
    keys: int  # gathered ones; 0: no prefix is shared, so none are
    runs: int
    most_q: int
    most_k: int

    @classmethod
    def holding(cls, runs: UnbranchedRuns, readings: int) -> GraphSizes:
        """The least sizes that hold a micro-batch: tokens in steps of a 16th or less, the others in 8ths of them."""
        total = len(runs.positions_T)
        tokens = _multiple(total + _MIN_PADDING, max(128, next_power_of_two(total) // 32))
        padding = tokens - total
        empty = -(-padding // _PADDING_RUN)
        shared = runs.gathered_keys > total
        keys = _multiple(runs.gathered_keys + padding, tokens // 8) if shared else 0
        most_padding = -(-(keys - runs.gathered_keys) // empty) if shared else _PADDING_RUN
        return cls(
            tokens,
            _multiple(readings, tokens // 8),
            keys,
            next_power_of_two(len(runs.sizes) + empty),
            next_power_of_two(max(*runs.sizes, _PADDING_RUN)),
            next_power_of_two(max(*runs.path_lengths, most_padding, _PADDING_RUN)),
        )

    def hold(self, runs: UnbranchedRuns, least: GraphSizes) -> bool:
        """Whether a micro-batch, whose least sizes are these, can be padded to them without computing much in vain."""
        if not least.tokens <= self.tokens <= MAX_EXCESS * least.tokens or bool(self.keys) != bool(least.keys):
            return False
        empty = -(-(self.tokens - len(runs.positions_T)) // _PADDING_RUN)
        fits = least.keys <= self.keys and len(runs.sizes) + empty <= self.runs and least.readings <= self.readings
        longest = max(least.most_k, -(-(self.keys - runs.gathered_keys) // empty))
        return fits and least.most_q <= self.most_q and longest <= self.most_k

    def pad(self, runs: UnbranchedRuns) -> tuple[IntArray, IntArray, IntArray, IntArray | None]:
        """Positions [T], the ends of each run's queries and keys, and the gathered tokens [G] or None.

        Padding is runs of tokens of their own. They also see the keys that are left over, so that each key belongs to
        some run, and its gradient is written. Runs beyond those have no tokens.
        """
        total = len(runs.positions_T)
        tokens = np.arange(total, self.tokens)
        empty = -(-len(tokens) // _PADDING_RUN)
        own = np.array_split(tokens, empty)
        spare = np.zeros(self.keys - runs.gathered_keys - len(tokens) if self.keys else 0, np.int64)
        more = [len(part) for part in np.array_split(spare, empty)]
        seen = [np.concatenate([np.resize(mine, extra), mine]) for mine, extra in zip(own, more, strict=True)]
        positions = np.concatenate([runs.positions_T, *(np.arange(len(mine)) for mine in own)])
        ends = [
            np.cumsum([0, *real, *padding, *[0] * (self.runs - len(real) - empty)])
            for real, padding in ((runs.sizes, map(len, own)), (runs.path_lengths, map(len, seen)))
        ]
        index = np.concatenate([runs.index_G(), *seen]) if self.keys else None
        return positions, ends[0], ends[1], index


class MicrobatchGraphs:
    """The graphs of a network whose `params` learn, at the temperature of its samples."""

    def __init__(self, net: Decoder, params: Mapping[str, Tensor], temperature: float) -> None:
        self.net, self.params, self.temperature = net, list(params.values()), temperature
        self.enabled = True
        self.in_use = threading.Lock()  # held while a step is computed
        self._passes: dict[GraphSizes, _Passes] = {}  # the last used is last
        self._grads: list[Tensor] = []  # that the backward graphs write
        self._addresses: list[int] = []
        self._pool: Any = None
        self._anchor = torch.zeros((), device=net.device, requires_grad=True)  # what `_Replay` is a function of
        free_on_demand(self)

    def begin(self) -> None:
        """Before the micro-batches of an optimiser step: graphs of sizes that have been rehearsed are captured. No
        autograd graph may be alive, since its nodes would tie what is captured to the stream that they ran in."""
        addresses = [p.data_ptr() for p in self.net.parameters()]
        if addresses != self._addresses:
            self.clear()
            self._addresses = addresses
        new = [passes for passes in self._passes.values() if not passes.captured and passes.runs >= REHEARSALS]
        if not new or not self.enabled:
            return
        gc.collect()
        with capture_lock:
            torch.cuda.empty_cache()  # what the rehearsal took
        if not self._grads:
            self._grads = [torch.empty_like(p) for p in self.params]
        reason = ""
        try:
            for passes in new:
                self._pool = passes.capture(self._grads, self._pool)
        except RuntimeError as error:  # out of memory, or what cannot be captured here
            reason = str(error).partition("\n")[0]
        if reason:  # outside the handler, which holds on to what was captured
            self.disable()
            warnings.warn(f"training launches kernels one by one: graphs cannot be captured ({reason})", stacklevel=1)

    def read(self, batch: PackedBatch) -> tuple[Tensor, Tensor] | None:
        """Log-probabilities and entropies [N] with gradient; None: such a micro-batch has no graph."""
        net = self.net
        runs, readings = UnbranchedRuns(batch.lengths, batch.parents), len(batch.source_N)
        if not self.enabled or not tree_attention.takes_varlen_attention(runs, net.config, net.device, net.dtype):
            return None
        least = GraphSizes.holding(runs, readings)
        if not self.fits(least):
            return None
        ready = [s for s, passes in self._passes.items() if passes.captured and s.hold(runs, least)]
        sizes = min(ready, key=lambda s: s.tokens, default=least)
        passes = self._passes.pop(sizes, None) or _Passes(net, self.params, self.temperature, sizes)
        self._passes[sizes] = passes
        while len(self._passes) > MAX_SIZES:
            del self._passes[next(iter(self._passes))]
        passes.write(batch, runs)
        passes.runs += 1
        if not passes.captured:
            logprobs_N, entropy_N = passes.compute()
            return logprobs_N[:readings], entropy_N[:readings]
        out: tuple[Tensor, Tensor] = _Replay.apply(self._anchor, self, passes, readings)  # type: ignore[no-untyped-call]
        return out

    def fits(self, sizes: GraphSizes) -> bool:
        """Whether launches would take longer than kernels, and the memory of a micro-batch is a small part of all."""
        c, device = self.net.config, self.net.device
        if sizes.tokens * c.layer_parameter_count > MAX_LAYER_WORK:
            return False
        if device.type != "cuda":
            return True
        kept = sizes.tokens * c.layers * kept_bytes_per_token(c, self.net.dtype.itemsize)
        whole: int = torch.cuda.get_device_properties(device).total_memory
        return kept <= whole // MEMORY_SHARE

    def backward(self, passes: _Passes, grads: tuple[Tensor | None, ...]) -> None:
        """Replay a backward pass, whose gradients become those of the parameters."""
        passes.write_gradients(grads)
        passes.replay_backward()
        for p, grad in zip(self.params, self._grads, strict=True):
            assert p.grad is None, "the gradients of the micro-batch before are to be added up by now"
            p.grad = grad

    def free_memory(self) -> bool:
        """Give the memory of the graphs back, unless they are in use; they are captured again when they are needed."""
        if not self._passes or not self.in_use.acquire(blocking=False):
            return False
        try:
            self.clear()
        finally:
            self.in_use.release()
        return True

    def clear(self) -> None:
        self._passes.clear()
        self._grads, self._pool = [], None

    def disable(self) -> None:
        """Memory is scarce, or nothing can be captured."""
        self.enabled = False
        self.clear()


class _Passes:
    """Forward and backward pass of micro-batches that are padded to one size."""

    def __init__(self, net: Decoder, params: list[Tensor], temperature: float, sizes: GraphSizes) -> None:
        self.net, self.params, self.temperature, self.sizes = net, params, temperature, sizes
        s, device = sizes, net.device
        integers = torch.zeros(2 * s.tokens + 2 * s.readings + s.keys, dtype=torch.int64, device=device)
        parts = integers.split([s.tokens, s.tokens, s.readings, s.readings, s.keys])
        self.ids_T, self.positions_T, self.source_N, self.target_N, self.index_G = parts
        self.ends_q, self.ends_k = torch.zeros(2, s.runs + 1, dtype=torch.int32, device=device)
        index = self.index_G if s.keys else None
        self.attend = VarlenTreeAttention.of_buffers(
            self.positions_T, self.ends_q, self.ends_k, s.most_q, s.most_k, index
        )
        self.read_2N = torch.zeros(2, s.readings, device=device)  # log-probabilities, entropies
        self.grads_N = tuple(torch.zeros(s.readings, device=device) for _ in range(2))
        self.runs = 0
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    @property
    def captured(self) -> bool:
        return self._graphs is not None

    def write(self, batch: PackedBatch, runs: UnbranchedRuns) -> None:
        """The inputs of the next pass."""
        for buffer, values in (
            (self.ids_T, batch.ids_T), (self.source_N, batch.source_N), (self.target_N, batch.target_N),
        ):  # fmt: skip
            buffer[: len(values)].copy_(values)
            buffer[len(values) :].zero_()
        # What is read in vain is padding, token after token: gradients of one and the same are added up slowly.
        spare = self.source_N[len(batch.source_N) :]
        torch.arange(len(spare), out=spare)
        spare.remainder_(self.sizes.tokens - len(batch.ids_T)).add_(len(batch.ids_T))
        positions, ends_q, ends_k, index = self.sizes.pad(runs)
        for buffer, array in (
            (self.positions_T, positions), (self.ends_q, ends_q), (self.ends_k, ends_k), (self.index_G, index),
        ):  # fmt: skip
            if array is not None:
                _write_async(buffer, array)

    def compute(self) -> tuple[Tensor, Tensor]:
        hidden_NE = self.net(self.ids_T, self.positions_T, self.attend, self.net.device.type == "cuda")[self.source_N]
        return token_logprobs(hidden_NE, self.net.lm_head.weight, self.target_N, self.temperature)

    @torch.enable_grad()
    def capture(self, grads: list[Tensor], pool: Any) -> Any:
        """Both passes as graphs, the second of which writes the gradients. Returns their memory pool. First they run as
        they are captured: what is compiled while a graph is captured ends the capture."""
        torch._foreach_copy_(grads, torch.autograd.grad(self.compute(), self.params, self.grads_N))
        with capture_lock:
            torch.cuda.empty_cache()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with capture(forward, self.net.device, pool):
            read = self.compute()
            with torch.no_grad():
                self.read_2N.copy_(torch.stack(read))
        pool = pool or forward.pool()
        with capture(backward, self.net.device, pool):
            torch._foreach_copy_(grads, torch.autograd.grad(read, self.params, self.grads_N))
        self._graphs = forward, backward
        return pool

    def replay_forward(self) -> Tensor:
        assert self._graphs is not None
        self._graphs[0].replay()
        return self.read_2N

    def write_gradients(self, grads: tuple[Tensor | None, ...]) -> None:
        for row_N, grad in zip(self.grads_N, grads, strict=True):
            row_N.zero_()
            if grad is not None:
                row_N[: len(grad)].copy_(grad)

    def replay_backward(self) -> None:
        assert self._graphs is not None
        self._graphs[1].replay()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, graphs: MicrobatchGraphs, passes: _Passes, readings: int) -> Any:
        ctx.graphs, ctx.passes = graphs, passes
        ctx.set_materialize_grads(False)
        logprobs_N, entropy_N = passes.replay_forward()[:, :readings]
        return logprobs_N.clone(), entropy_N.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None, None]:
        ctx.graphs.backward(ctx.passes, grads)
        return None, None, None, None


def _write_async(buffer: Tensor, array: IntArray) -> None:
    """From pinned memory, so that the host does not wait for the device."""
    values = torch.from_numpy(array).to(buffer.dtype)
    buffer.copy_(values.pin_memory() if buffer.is_cuda else values, non_blocking=True)


def _multiple(count: int, of: int) -> int:
    return -(-count // of) * of
