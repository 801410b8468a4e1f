"""Decoding on a GPU: a whole pass as one CUDA graph, drawing included, run many times between two looks at the text.

A pass of a small model is some hundred short kernels: launched one by one, the host would take ten times as long as
they do. The host does not wait either: while it reads what one run of passes wrote, the next one is computed. A row
that ended meanwhile is drawn for in vain, until the next time the rows are laid out anew.

Rows that only the host can draw for have passes of one token, in turns with the others.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.engine import chance, passes
from ponder.engine.adapters import adapter_of
from ponder.engine.batch import BUCKETS, Batch, aside, send
from ponder.engine.buffers import STEPS, Buffers
from ponder.engine.cache import Cache, bytes_per_token
from ponder.engine.pages import Pages
from ponder.engine.request import Row
from ponder.engine.runner import Results, Runner
from ponder.engine.schedule import Part
from ponder.engine.tree import Memory, Node, Tree
from ponder.engine.weights import Weights, where
from ponder.nets.decoder import Decoder
from ponder.types import ids

_TURN = 4  # passes in a turn beside rows that the host draws for: these take about as long for one token
_LONG = 5e13  # tokens times parameters of a pass that nobody should wait for: about 150 ms of an H200
PLAIN, HOSTED, ADAPTED = range(3)  # drawn for in the graph; by the host; and those whose pass is no graph either


class Graphs(Runner):
    """A runner for decoders on a GPU. It rounds where the plain one does, but adds in another order."""

    def __init__(self, net: Decoder, slots: int, most_rows: int = BUCKETS[-1], small: str = "") -> None:
        self.most = next((b for b in BUCKETS if b >= most_rows), BUCKETS[-1])
        # a row that has ended is drawn for until the others are looked at
        self.weights = Weights(net, 2 * STEPS, small)
        self._parameters = sum(p.numel() for p in net.parameters())
        self._pages: Pages | None = None
        self.blank = slots  # the last slot takes what rows that are not there write
        super().__init__(net, slots + 1)
        # those that are drawn for where they are computed, and those whose logits the host looks at
        self._drawn: Batch | None = None
        self._seen: Batch | None = None
        self._turn = 0
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
            with aside(net.device):
                b = Buffers(net, self.most, self.blank)
                passes.decode(self.weights, self.cache, b, 1, drawing=True)
                passes.fill(self.weights, self.cache, [Part(nobody, 0, 1)])
                int(b.step)  # it is done
                self._drawn = Batch(self.weights, self.cache, b, self.blank, drawing=True)
                self.ready.set()
                if net.device.type == "cuda":  # these are needed later, if ever
                    passes.decode(self.weights, self.cache, Buffers(net, 1, self.blank), 1, True, True, True)
        except Exception as why:
            warnings.warn(f"sampling is slow: kernels for it cannot be used here ({why})", stacklevel=1)

    def close(self) -> None:
        self._compiling.join()

    def _filled(self, parts: Sequence[Part]) -> Tensor:
        if not self._knows((), parts):
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

    def choose(self, rows: Sequence[Row]) -> tuple[Sequence[Row], int]:
        if not self.ready.is_set() or len(rows) > self.most:
            return rows, 1
        kinds = sorted({_kind(row) for row in rows})
        if len(kinds) == 1:
            return rows, self.steps(rows) if kinds == [PLAIN] else 1
        self._turn += 1
        kind = kinds[self._turn % len(kinds)]
        some = [row for row in rows if _kind(row) == kind]
        return some, min(_TURN, self.steps(some)) if kind == PLAIN else 1

    def beside(self, parts: Sequence[Part]) -> bool:
        """Not in a short pass: setting one up for both takes the host longer than it saves the device."""
        tokens = sum(part.stop - part.start for part in parts)
        return not self.ready.is_set() or tokens * self._parameters >= _LONG

    def steps(self, rows: Sequence[Row], ahead: int = 0) -> int:
        return max(1, min(STEPS, max(row.sampling.max_tokens - len(row.token_ids) for row in rows) - ahead))

    def draws(self, rows: Sequence[Row], parts: Sequence[Part] = ()) -> bool:
        return self._knows(rows, parts) and all(row.plain for row in rows)

    def _knows(self, rows: Sequence[Row], parts: Sequence[Part]) -> bool:
        """Are there kernels for such a pass?"""
        adapted = any(row.adapter for row in rows) or any(adapter_of(part.node) for part in parts)
        return self.ready.is_set() and len(rows) <= self.most and not adapted

    def decode(self, rows: Sequence[Row], parts: Sequence[Part] = ()) -> Tensor:
        if not self._knows(rows, parts):
            for batch in self._batches:
                if not batch.place.keys().isdisjoint(rows):  # they go on elsewhere
                    batch.place = {}
            return super().decode(rows, parts)
        if self._seen is None:
            assert self._drawn is not None
            buffers = Buffers(self.net, self.most, self.blank, self._drawn.buffers)
            self._seen = Batch(self.weights, self.cache, buffers, self.blank, drawing=False)
        places = self._seen.lay_out(rows, 1)
        self._fill_beside(self._seen, parts)
        logits = self._seen.buffers.logits
        return logits[: len(rows)] if places.tolist() == list(range(len(rows))) else logits[places]

    def follows(self, rows: Sequence[Row], steps: int) -> bool:
        return self._drawn is not None and self._drawn.follows(rows, steps)

    def launch(self, rows: Sequence[Row], steps: int, ahead: int = 0, parts: Sequence[Part] = ()) -> Results:
        batch = self._drawn
        assert batch is not None
        b, places = batch.buffers, batch.lay_out(rows, steps, ahead)
        keys = np.asarray([row.key for row in rows], np.uint64)
        begins = np.asarray([len(row.token_ids) for row in rows]) + ahead
        uniforms = np.zeros((batch.bucket, STEPS))
        uniforms[places, :steps] = chance.uniforms(keys[:, None], begins[:, None] + np.arange(steps))
        send(uniforms, b.uniforms[: batch.bucket])
        b.step.zero_()
        self._fill_beside(batch, parts)
        for _ in range(steps - 1):
            batch.run()
        tokens, said = (_fetch(x[: batch.bucket]) for x in (b.tokens, b.logprobs))
        done = torch.cuda.Event() if b.logits.is_cuda else None
        if done is not None:
            done.record()

        def results() -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            if done is not None:
                done.synchronize()
            return tokens.numpy()[places, :steps], said.numpy()[places, :steps]

        return results

    def _fill_beside(self, batch: Batch, parts: Sequence[Part]) -> None:
        """A pass of the batch, and the parts in it."""
        Runner.forget(self)  # what plain passes knew of these rows is old
        hidden = batch.run(parts)
        if parts:
            assert hidden is not None
            self._read(parts, hidden)

    def forget(self) -> None:
        super().forget()
        for batch in self._batches:
            batch.place = {}

    @property
    def _batches(self) -> list[Batch]:
        return [batch for batch in (self._drawn, self._seen) if batch is not None]

    def serves(self, net: Decoder) -> bool:
        """Also: are its weights still those that the graphs read?"""
        return super().serves(net) and self.weights.where == where(net)

    def renew(self) -> None:
        self.weights.renew()

    def sleep(self) -> bool:
        if self._pages is None:
            return False
        self._compiling.join()
        self.forget()
        self._pages.give_back()
        return True

    @torch.inference_mode()
    def wake(self) -> None:
        if self._pages is not None:
            self._pages.take()
            for kv in self.cache.kv:
                kv[:, :, self.blank] = 0


def _kind(row: Row) -> int:
    return PLAIN if row.plain else ADAPTED if row.adapter else HOSTED


def _fetch(values: Tensor) -> Tensor:
    """To the host, without waiting: what is read before the device comes to it is anything."""
    if not values.is_cuda:
        return values.clone()
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
