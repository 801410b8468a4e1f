"""Decoding on a GPU: a whole pass as one CUDA graph, drawing included, run many times between two looks at the text.

A pass of a small model is some hundred short kernels: launched one by one, the host would take ten times as long as
they do. So each size of batch is captured once, on buffers that stay where they are. What changes between passes
(positions, newest tokens) is changed by the kernels themselves; what changes when rows come or go is copied in. The
host does not wait: while it reads what one run of passes wrote, the next one is computed. A row that ended meanwhile is
drawn for in vain, until the next time the rows are laid out anew.

Shapes as in kernels.py.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine import chance, passes
from ponder.engine.adapters import adapter_of
from ponder.engine.buffers import STEPS, Buffers, arrange
from ponder.engine.cache import Cache, bytes_per_token
from ponder.engine.pages import Pages, capture
from ponder.engine.plan import plan
from ponder.engine.request import Row
from ponder.engine.runner import Runner
from ponder.engine.schedule import Part
from ponder.engine.tree import Memory, Node, Tree
from ponder.engine.weights import Weights, where
from ponder.nets.decoder import Decoder
from ponder.types import ids

_WHOLE = (0, 1.0, 0.0)  # no top-k, top-p or min-p
BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class Graphs(Runner):
    """A runner for decoders on a GPU. It rounds where the plain one does, but adds in another order."""

    def __init__(self, net: Decoder, slots: int, most_rows: int = BUCKETS[-1], small: str = "") -> None:
        self.most = next((b for b in BUCKETS if b >= most_rows), BUCKETS[-1])
        # a row that has ended is drawn for until the others are looked at
        self.weights = Weights(net, 2 * STEPS, small)
        self._pages: Pages | None = None
        self.blank = slots  # the last slot takes what rows that are not there write
        super().__init__(net, slots + 1)
        self._graphs: dict[tuple[int, bool, bool, bool], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._buffers: Buffers | None = None
        self._place: dict[Row, int] = {}  # of each row in the buffers
        self._bucket = 0
        self._sharing = self._trimming = False
        self._lengths = self._starts = np.empty(0, np.int64)  # of what each row reads alone, by place
        self.ready = threading.Event()  # until then, all is computed as on any device
        # no daemon: one that the interpreter's end meets inside torch aborts the process
        self._compiling = threading.Thread(target=self._compile, name="compile", daemon=False)
        self._compiling.start()

    @torch.inference_mode()
    def _compile(self) -> None:
        """A pass for nobody, aside: the first on a machine takes seconds, since all kernels are compiled in it."""
        net = self.net
        nobody = Node(Tree(Memory(1)), None, ids([0]), np.asarray([self.blank], np.int32), 0)
        try:
            with _aside(net.device):
                b = Buffers(net, self.most, self.blank)
                passes.decode(self.weights, self.cache, b, 1, drawing=True)
                passes.fill(self.weights, self.cache, [Part(nobody, 0, 1)])
                int(b.step)  # it is done
                self._buffers = b
                self.ready.set()
                if net.device.type == "cuda":  # these are needed later, if ever
                    passes.decode(self.weights, self.cache, Buffers(net, 1, self.blank), 1, True, True, True)
        except Exception as why:
            warnings.warn(f"sampling is slow: kernels for it cannot be used here ({why})", stacklevel=1)

    def close(self) -> None:
        self._compiling.join()

    def _filled(self, parts: Sequence[Part]) -> Tensor:
        if not self.ready.is_set() or any(adapter_of(part.node) for part in parts):
            return super()._filled(parts)
        return passes.fill(self.weights, self.cache, parts)

    def _memory(self, slots: int) -> Cache:
        c, net = self.net.config, self.net
        if net.device.type != "cuda":
            return Cache(c, slots, net.device, net.dtype)
        try:
            self._pages = Pages(slots * bytes_per_token(c, net.dtype), net.device)
        except torch.OutOfMemoryError:
            raise
        except (OSError, RuntimeError):  # a device or driver without such memory: then the cache cannot sleep
            return Cache(c, slots, net.device, net.dtype)
        kv = self._pages.tensor((c.layers, 2, c.kv_heads, slots, c.head_dim), net.dtype)
        kv[:, :, :, slots - 1] = 0
        return Cache(c, slots, net.device, net.dtype, list(kv))

    def steps(self, rows: Sequence[Row], ahead: int = 0) -> int:
        """Passes before the text must be looked at."""
        if not self.draws(rows):
            return 1
        return max(1, min(STEPS, max(row.sampling.max_tokens - len(row.token_ids) for row in rows) - ahead))

    def draws(self, rows: Sequence[Row]) -> bool:
        return self.ready.is_set() and len(rows) <= self.most and all(row.plain for row in rows)

    def decode(self, rows: Sequence[Row]) -> Tensor:
        if not self.ready.is_set() or len(rows) > self.most or any(row.adapter for row in rows):
            self._place = {}
            return super().decode(rows)
        b = self._lay_out(rows, 1)
        self._run(drawing=False)
        places = [self._place[row] for row in rows]
        return b.logits[: len(rows)] if places == list(range(len(rows))) else b.logits[places]

    def follows(self, rows: Sequence[Row], steps: int) -> bool:
        """Can these rows go on from where they are in the buffers?"""
        return (
            all(row in self._place for row in rows)
            and _bucket(len(rows)) == self._bucket
            and self._buffers is not None
            and int(self._lengths.max()) + steps <= self._buffers.tails.shape[1]
        )

    def launch(
        self, rows: Sequence[Row], steps: int, ahead: int = 0
    ) -> Callable[[], tuple[NDArray[np.int32], NDArray[np.float32]]]:
        b = self._lay_out(rows, steps, ahead)
        places = np.asarray([self._place[row] for row in rows])
        keys = np.asarray([row.key for row in rows], np.uint64)
        begins = np.asarray([len(row.token_ids) for row in rows]) + ahead
        uniforms = np.zeros((self._bucket, STEPS))
        uniforms[places, :steps] = chance.uniforms(keys[:, None], begins[:, None] + np.arange(steps))
        _send(uniforms, b.uniforms[: self._bucket])
        b.step.zero_()
        for _ in range(steps):
            self._run(drawing=True)
        tokens, said = (_fetch(x[: self._bucket]) for x in (b.tokens, b.logprobs))
        done = torch.cuda.Event() if b.logits.is_cuda else None
        if done is not None:
            done.record()

        def results() -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            if done is not None:
                done.synchronize()
            return tokens.numpy()[places, :steps], said.numpy()[places, :steps]

        return results

    def _lay_out(self, rows: Sequence[Row], steps: int, ahead: int = 0) -> Buffers:
        """Rows into the buffers, with the slots of their next tokens. Tokens that are `ahead` only the device knows."""
        b = self._buffers
        assert b is not None
        going = self.follows(rows, steps)
        assert going or not ahead
        if not going:
            self._fill_in(b, rows)
        self._retire(b, rows)
        places = np.asarray([self._place[row] for row in rows])
        if not ahead:
            newest, positions = np.zeros(self._bucket, np.int64), np.zeros(self._bucket, np.int64)
            newest[places] = [row.token_ids[-1] if row.token_ids else row.request.prefix[-1] for row in rows]
            positions[places] = (self._starts + self._lengths)[places] - (0 if going else steps)
            _send(newest, b.newest[: self._bucket])
            _send(positions, b.positions[: self._bucket])
        if going:
            fresh = np.full((self._bucket, steps), self.blank, np.int32)
            fresh[places] = [row.own[-steps:] for row in rows]
            columns = (b.positions - b.starts)[: self._bucket, None] + torch.arange(steps, device=b.tails.device)
            b.tails[: self._bucket].scatter_(1, columns, _send(fresh, torch.empty_like(columns, dtype=torch.int32)))
            self._lengths[places] += steps
        return b

    def _retire(self, b: Buffers, rows: Sequence[Row]) -> None:
        """Places whose rows have gone begin at 0 again and again, and write to the blank slot."""
        if len(self._place) > len(rows):
            here = set(rows)
            for row in [row for row in self._place if row not in here]:
                place = self._place.pop(row)
                self._lengths[place] = self._starts[place] = 0
        if len(self._place) == self._bucket:
            return
        empty = np.setdiff1d(np.arange(self._bucket), np.fromiter(self._place.values(), np.int64))
        index = _send(empty, torch.empty(len(empty), dtype=torch.int64, device=b.positions.device))
        b.positions.index_fill_(0, index, 0)
        b.starts.index_fill_(0, index, 0)

    def _fill_in(self, b: Buffers, rows: Sequence[Row]) -> None:
        """Other rows than last time: what each of them reads."""
        self._bucket = bucket = _bucket(len(rows))
        made, c, width = plan(rows), self.net.config, b.tails.shape[1]
        arrange(made, bucket, width, bytes_per_token(c, self.net.dtype) // c.layers)
        self._place = {row: i for i, row in enumerate(rows)}
        for row in rows:
            row.computed += not row.token_ids
        self._lengths, self._starts = np.zeros(bucket, np.int64), np.zeros(bucket, np.int64)
        self._lengths[: len(rows)], self._starts[: len(rows)] = [len(tail) for tail in made.tails], made.starts
        table = np.full((bucket, width), self.blank, np.int32)
        for r, tail in enumerate(made.tails):
            table[r, : len(tail)] = tail
        heat, greedy = np.ones(bucket, np.float32), np.zeros(bucket, np.int32)
        heat[: len(rows)] = [row.sampling.temperature or 1.0 for row in rows]
        greedy[: len(rows)] = [row.sampling.temperature == 0 for row in rows]
        for value, buffer in ((table, b.tails), (self._starts, b.starts), (heat, b.heat), (greedy, b.greedy)):
            _send(value, buffer[:bucket])
        cuts = [(s.top_k, s.top_p, s.min_p) if s.temperature else _WHOLE for s in (row.sampling for row in rows)]
        self._trimming = any(cut != _WHOLE for cut in cuts)
        if self._trimming:
            padded = np.asarray(cuts + [_WHOLE] * (bucket - len(rows)))
            for column, buffer in zip(padded.T, (b.keep_k, b.keep_p, b.min_p), strict=True):
                _send(np.ascontiguousarray(column), buffer[:bucket])
        self._sharing = bool(made.shared)
        if self._sharing and b.share(made, bucket):
            self._graphs = {k: g for k, g in self._graphs.items() if not k[2]}  # they read a table no more in use

    def forget(self) -> None:
        super().forget()
        self._place = {}

    def serves(self, net: Decoder) -> bool:
        """Also: are its weights still those that the graphs read?"""
        return super().serves(net) and self.weights.where == where(net)

    def renew(self) -> None:
        self.weights.renew()

    def sleep(self) -> bool:
        if self._pages is None:
            return False
        self._compiling.join()
        self._place = {}
        self._pages.give_back()
        return True

    @torch.inference_mode()
    def wake(self) -> None:
        if self._pages is not None:
            self._pages.take()
            for kv in self.cache.kv:
                kv[:, :, self.blank] = 0

    def _run(self, drawing: bool) -> None:
        assert self._buffers is not None
        b, key = self._buffers, (self._bucket, drawing, self._sharing, self._trimming and drawing)
        if not b.logits.is_cuda:  # Triton's interpreter
            passes.decode(self.weights, self.cache, b, *key)
            return
        if key not in self._graphs:
            kept = [x.clone() for x in (b.positions, b.newest, b.step)]

            def once() -> None:
                passes.decode(self.weights, self.cache, b, *key)

            with _aside(self.net.device):
                once()  # compiles the kernels, and lets cuBLAS choose
                for x, old in zip((b.positions, b.newest, b.step), kept, strict=True):
                    x.copy_(old)
                side = torch.cuda.current_stream()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with capture, torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                once()
            self._pool = self._pool or graph.pool()
            self._graphs[key] = graph
        self._graphs[key].replay()


def _aside(device: torch.device) -> AbstractContextManager[Any]:
    """On a stream of its own, after what was begun so far."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def _bucket(rows: int) -> int:
    return next(b for b in BUCKETS if b >= rows)


def _send(values: NDArray[Any], buffer: Tensor) -> Tensor:
    """To the device, without waiting for it."""
    host = torch.from_numpy(values)
    return buffer.copy_(host.pin_memory() if buffer.is_cuda else host, non_blocking=True)


def _fetch(values: Tensor) -> Tensor:
    """To the host, without waiting: what is read before the device comes to it is anything."""
    if not values.is_cuda:
        return values.clone()
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
