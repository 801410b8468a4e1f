"""Decoding on a GPU: a whole pass as one CUDA graph, drawing included, run many times between two looks at the text.

A pass of a small model is some hundred short kernels: launched one by one, the host would take ten times as long as
they do. So each size of batch is captured once, on buffers that stay where they are. What changes between passes
(positions, newest tokens) is changed by the kernels themselves; what changes when rows come or go is copied in.

Shapes as in kernels.py; W the width of the table of tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ponder.engine.cache import Cache
from ponder.engine.plan import Plan, Segment, plan
from ponder.engine.request import Row
from ponder.engine.runner import Runner
from ponder.engine.tree import Slots
from ponder.nets.decoder import Decoder

STEPS = 16  # passes between two looks: a text that ends is noticed after half as many, on average
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
_ROWS_AT_ONCE = 32  # queries (rows times heads of a group) that read a shared run together
_RUN = 512  # keys of a shared run that one program reads
_TAIL = 1024  # longer tails are cut into runs, to be read side by side
_FEW = 64  # shared runs for which there is always room
_CHUNK = 2048  # of the vocabulary, when drawing


class Graphs(Runner):
    """A runner for decoders on a GPU. It rounds where the plain one does, but adds in another order."""

    def __init__(self, net: Decoder, slots: int, most_rows: int = BUCKETS[-1]) -> None:
        super().__init__(net, slots + 1)  # the last slot takes what rows that are not there write
        self.blank = slots
        self.most = next((b for b in BUCKETS if b >= most_rows), BUCKETS[-1])
        self.weights = Weights(net)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._buffers: Buffers | None = None
        self._placed: list[Row] = []  # rows in the buffers, with the length and first position of each one's tail
        self._lengths = self._starts = np.empty(0, np.int64)

    def steps(self, rows: Sequence[Row]) -> int:
        """Passes before the text must be looked at."""
        if not self.draws(rows):
            return 1
        return max(1, min(STEPS, max(row.sampling.max_tokens - len(row.token_ids) for row in rows)))

    def draws(self, rows: Sequence[Row]) -> bool:
        return len(rows) <= self.most and all(_plain(row) for row in rows)

    def decode(self, rows: Sequence[Row]) -> Tensor:
        if len(rows) > self.most or any(row.adapter for row in rows):
            return super().decode(rows)
        b = self._place(rows, 1)
        self._run(len(rows), drawing=False)
        return b.logits[: len(rows)]

    def burst(self, rows: Sequence[Row], steps: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        b = self._place(rows, steps)
        uniforms = np.ones((len(rows), STEPS))
        for r, row in enumerate(rows):
            at = len(row.token_ids)
            drawn = row.uniforms[at : at + steps]  # a row past its last token draws what nobody reads
            uniforms[r, : len(drawn)] = drawn
        b.uniforms[: len(rows)].copy_(torch.from_numpy(uniforms), non_blocking=True)
        b.step.zero_()
        for _ in range(steps):
            self._run(len(rows), drawing=True)
        tokens, said = b.tokens[: len(rows), :steps].cpu(), b.logprobs[: len(rows), :steps].cpu()
        return tokens.numpy(), said.numpy()

    def forget(self) -> None:
        super().forget()
        self._placed = []

    def _place(self, rows: Sequence[Row], steps: int) -> Buffers:
        """Rows into the buffers, with the slots of their next tokens."""
        if self._buffers is None:
            self._buffers = Buffers(self.net, self.most, self.blank)
        b, many, bucket = self._buffers, len(rows), _bucket(len(rows))
        if self._placed == rows and int(self._lengths.max()) + steps <= b.tails.shape[1]:
            fresh = np.asarray([row.own[-steps:] for row in rows], np.int32)
            columns = self._lengths[:, None] + np.arange(steps)
            index = torch.from_numpy(np.arange(many)[:, None] * b.tails.shape[1] + columns).to(b.tails.device)
            b.tails.view(-1)[index] = torch.from_numpy(fresh).to(b.tails.device)
            self._lengths = self._lengths + steps
        else:
            self._fill_in(b, rows, bucket)
        newest, positions = np.zeros(bucket, np.int64), np.zeros(bucket, np.int64)
        newest[:many] = [row.token_ids[-1] if row.token_ids else row.request.prefix[-1] for row in rows]
        positions[:many] = self._starts + self._lengths - steps
        b.newest[:bucket].copy_(torch.from_numpy(newest))
        b.positions[:bucket].copy_(torch.from_numpy(positions))
        return b

    def _fill_in(self, b: Buffers, rows: Sequence[Row], bucket: int) -> None:
        """Other rows than last time: what each of them reads."""
        made, many = plan(rows), len(rows)
        _cut(made, b.tails.shape[1])
        if sum(len(segment.rows) for segment in made.shared) > _most_items(bucket):
            made.shared = _flattened(made.shared)
        self._placed = list(rows)
        for row in rows:
            row.computed += not row.token_ids
        self._lengths, self._starts = np.asarray([len(tail) for tail in made.tails]), np.asarray(made.starts)
        table = np.full((bucket, b.tails.shape[1]), self.blank, np.int32)
        for r, tail in enumerate(made.tails):
            table[r, : len(tail)] = tail
        starts, heat, greedy = np.zeros(bucket, np.int64), np.ones(bucket, np.float32), np.zeros(bucket, np.int32)
        starts[:many] = self._starts
        heat[:many] = [row.sampling.temperature or 1.0 for row in rows]
        greedy[:many] = [row.sampling.temperature == 0 for row in rows]
        for buffer, value in ((b.tails, table), (b.starts, starts), (b.heat, heat), (b.greedy, greedy)):
            buffer[:bucket].copy_(torch.from_numpy(value))
        if b.share(made, bucket):
            self._graphs, self._pool = {}, None  # they read a table that is not in use any more

    def serves(self, net: Decoder) -> bool:
        """Also: are its weights still those that the graphs read?"""
        return super().serves(net) and self.weights.where == _where(net)

    def _run(self, rows: int, drawing: bool) -> None:
        assert self._buffers is not None
        b, bucket = self._buffers, _bucket(rows)
        if not b.stream.is_cuda:  # Triton's interpreter
            one_pass(self.weights, self.cache, b, bucket, drawing)
            return
        if (bucket, drawing) not in self._graphs:
            kept = [x.clone() for x in (b.positions, b.newest, b.step)]

            def once() -> None:
                one_pass(self.weights, self.cache, b, bucket, drawing)

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                once()  # compiles the kernels, and lets cuBLAS choose
                for x, old in zip((b.positions, b.newest, b.step), kept, strict=True):
                    x.copy_(old)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                once()
            self._pool = self._pool or graph.pool()
            self._graphs[bucket, drawing] = graph
        self._graphs[bucket, drawing].replay()


def _plain(row: Row) -> bool:
    """What the graph can draw by itself."""
    s = row.sampling
    return not (s.truncated or s.measures or s.alternatives or row.guide is not None or row.adapter)


def _most_items(rows: int) -> int:
    """Runs that are shared in a batch of so many rows; more are made longer until they are as few."""
    return 4 * rows + _FEW


def _bucket(rows: int) -> int:
    return next(b for b in BUCKETS if b >= rows)


def _cut(made: Plan, width: int) -> None:
    """Long tails become runs that are read side by side, so that few rows keep the whole device at work."""
    for r, tail in enumerate(made.tails):
        cut = len(tail) - 2 * STEPS  # the last slots are written yet
        if cut > 0 and (len(tail) > _TAIL or len(tail) + 8 * STEPS > width):
            made.shared.append(Segment([r], made.starts[r], [tail[:cut]]))
            made.tails[r], made.starts[r] = tail[cut:], made.starts[r] + cut


def _flattened(shared: Sequence[Segment]) -> list[Segment]:
    """Of a deep tree, only the runs next to its roots stay shared: a row reads three of them, then one of its own."""
    kept: list[Segment] = []
    own: dict[int, Segment] = {}
    depth: dict[int, int] = {}
    for segment in sorted(shared, key=lambda s: s.position):
        deep = depth.get(segment.rows[0], 0)  # all that read this run have read the same before it
        if deep < 3:
            kept.append(segment)
            depth |= dict.fromkeys(segment.rows, deep + 1)
        else:
            for row in segment.rows:
                own.setdefault(row, Segment([row], segment.position)).parts += segment.parts
    return [*kept, *own.values()]


Linear = tuple[Tensor, Tensor | None]  # matrix and bias


@dataclass(slots=True)
class Layer:
    block: Any
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    window: int  # 0: none
    turn: int  # which of the decoder's two rotations


class Weights:
    """The decoder's tensors as a pass uses them. Matrices that one input meets are merged: the decoder's parameters
    become views of the merged ones, so the learner trains them in place."""

    @torch.inference_mode(False)  # what is made in inference mode cannot be trained
    def __init__(self, net: Decoder) -> None:
        self.config = c = net.config
        self.layers: list[Layer] = []
        block: Any
        for block in net.layers:
            own, mlp = block.self_attn, block.mlp
            self.layers.append(
                Layer(
                    block,
                    _merged([own.q_proj, own.k_proj, own.v_proj]),
                    (own.o_proj.weight, own.o_proj.bias),
                    _merged([mlp.gate_proj, mlp.up_proj]),
                    (mlp.down_proj.weight, mlp.down_proj.bias),
                    own.window or 0,
                    1 if c.local_rope is not None and own.window is not None else 0,
                )
            )
        self.embedding, self.head, self.norm = net.embed_tokens.weight, net.lm_head.weight, net.norm.weight
        self.where = _where(net)
        # a row that has ended is drawn for until the others are looked at
        at, half = torch.arange(c.context + STEPS, device=net.device), c.head_dim // 2
        self.turns = []
        for freqs, factor in net._turns:
            cos, sin = net._turn(at, freqs, factor, net.dtype)
            self.turns.append((cos[:, 0, :half].contiguous(), sin[:, 0, :half].contiguous()))


def _where(net: Decoder) -> list[int]:
    return [p.data_ptr() for p in net.parameters()]


def _merged(layers: list[Any]) -> Linear:
    """One matrix (and bias) for several linear layers; theirs are views of it from now on."""

    def one(parts: list[nn.Parameter]) -> Tensor:
        rows = [p.shape[0] for p in parts]
        begin = [sum(rows[:i]) * parts[0].stride(0) for i in range(len(rows))]
        home = {p.untyped_storage().data_ptr() for p in parts}
        if len(home) == 1 and [p.storage_offset() for p in parts] == begin:  # merged before
            return torch.as_strided(parts[0].data, (sum(rows), *parts[0].shape[1:]), parts[0].stride())
        whole = torch.cat([p.data for p in parts])
        for p, part in zip(parts, whole.split(rows), strict=True):
            p.data = part
        return whole

    bias = one([layer.bias for layer in layers]) if layers[0].bias is not None else None
    return one([layer.weight for layer in layers]), bias


class Buffers:
    """What the graphs read and write."""

    def __init__(self, net: Decoder, rows: int, slots: int) -> None:
        c, device, dtype = net.config, net.device, net.dtype

        def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=device, dtype=kind)

        whole, real = torch.int32, torch.float32
        self.rows = rows
        self.newest, self.positions, self.starts = (empty(rows, kind=torch.int64) for _ in range(3))
        self.tails = empty(rows, max(_TAIL + 64 * STEPS, 256), kind=whole)
        self.heat, self.greedy = torch.ones(rows, device=device), empty(rows, kind=whole)
        self.uniforms = empty(rows, STEPS, kind=torch.float64)
        self.tokens, self.logprobs = empty(rows, STEPS, kind=whole), empty(rows, STEPS, kind=real)
        self.step = empty(1, kind=whole)
        self.stream, self.more, self.normed = (empty(rows, c.width) for _ in range(3))
        self.qkv = empty(rows, (c.heads + 2 * c.kv_heads) * c.head_dim)
        self.q, self.mixed = (empty(rows, c.heads, c.head_dim) for _ in range(2))
        self.both, self.gated = empty(rows, 2 * c.hidden), empty(rows, c.hidden)
        self.logits = empty(rows, c.vocab, kind=real)
        chunks = -(-c.vocab // _CHUNK)
        self.tops, self.sums = (empty(rows, chunks, kind=real) for _ in range(2))
        self.best = empty(rows, chunks, kind=whole)
        # shared runs: as many items and entries as there may be, and for each entry a part of the attention
        self.most_items = _most_items(rows)
        self.items, self.counts = empty(self.most_items, 5, kind=whole), empty(1, kind=whole)
        self.entry_rows = empty(self.most_items, kind=whole)
        self.row_entries, self.row_ends = empty(self.most_items, kind=whole), empty(rows + 1, kind=whole)
        self.parts = empty(self.most_items, c.heads, c.head_dim, kind=real)
        self.part_tops, self.part_totals = (empty(self.most_items, c.heads, kind=real) for _ in range(2))
        self.slots = empty(slots, kind=whole)  # each is in one run, but where runs of a deep tree are not shared
        self.group = c.heads // c.kv_heads

    def share(self, made: Plan, bucket: int) -> bool:
        """The shared runs of a plan, cut to what one program reads. True: the table of slots had to be replaced."""
        run, per = _RUN, max(1, _ROWS_AT_ONCE // self.group)
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
            if max(len(items), len(entries)) <= _most_items(bucket):
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
        self.row_ends[: bucket + 1].copy_(torch.from_numpy(ends.astype(np.int32)))
        return small


def one_pass(w: Weights, cache: Cache, b: Buffers, rows: int, drawing: bool) -> None:
    """One more token for each row: from `newest` to `logits`, and where it is drawing, to the next `newest`."""
    from ponder.engine import kernels as k

    c = w.config
    stream, more, normed = b.stream[:rows], b.more[:rows], b.normed[:rows]
    torch.index_select(w.embedding, 0, b.newest[:rows], out=stream)
    if c.gemma:
        stream.mul_(torch.tensor(c.width**0.5, dtype=stream.dtype))
    slots = cache.kv[0].shape[2]
    wide, half = _power(c.width), _power(c.head_dim // 2)
    group = c.heads // c.kv_heads
    size = {"H": c.heads, "K": c.kv_heads, "G": group, "D": _power(c.head_dim)}

    def norm(module: Any, add: bool, source: Tensor = stream, out: Tensor = normed) -> None:
        k.add_norm[(rows,)](
            source, more, module.weight, out, c.width, module.eps, ADD=add, GEMMA=module.gemma, E=wide
        )  # fmt: skip

    for i, layer in enumerate(w.layers):
        block, kv = layer.block, cache.kv[i]
        own = block.self_attn
        norm(block.input_layernorm, add=i > 0)
        _linear(normed, layer.qkv, b.qkv[:rows])
        cos, sin = w.turns[layer.turn]
        weight = (own.q_norm.weight, own.k_norm.weight) if own.qk_norm else (b.q, b.q)
        k.turn_and_store[(rows, c.heads + 2 * c.kv_heads)](
            b.qkv, b.q, kv, b.tails, b.starts, b.positions, cos, sin, *weight, c.norm_eps, slots, c.head_dim,
            b.tails.shape[1], H=c.heads, K=c.kv_heads, NORM=own.qk_norm, GEMMA=c.gemma, HALF=half,
        )  # fmt: skip
        k.shared[(_most_items(rows), c.kv_heads)](
            b.q, kv, b.positions, b.items, b.entry_rows, b.slots, b.counts, b.parts, b.part_tops, b.part_totals,
            c.scale, slots, layer.window, c.head_dim,
            M=max(16, _power(min(max(_ROWS_AT_ONCE, group), group * rows))), N=64, **size,
        )  # fmt: skip
        k.tails[(rows, c.kv_heads)](
            b.q, kv, b.positions, b.tails, b.starts, b.row_entries, b.row_ends, b.parts, b.part_tops, b.part_totals,
            b.mixed, c.scale, slots, layer.window, c.head_dim, b.tails.shape[1],
            M=max(16, _power(group)), N=64, **size,
        )  # fmt: skip
        _linear(b.mixed[:rows].flatten(1), layer.out, more)
        if c.gemma:
            norm(block.post_attention_layernorm, add=False, source=more, out=more)
            norm(block.pre_feedforward_layernorm, add=True)
        else:
            norm(block.post_attention_layernorm, add=True)
        _linear(normed, layer.gate_up, b.both[:rows])
        k.gate[(rows, -(-c.hidden // 1024))](b.both, b.gated, c.hidden, GELU=block.mlp.gelu, N=1024)
        _linear(b.gated[:rows], layer.down, more)
        if c.gemma:
            norm(block.post_feedforward_layernorm, add=False, source=more, out=more)
    k.add_norm[(rows,)](stream, more, w.norm, normed, c.width, c.norm_eps, ADD=True, GEMMA=c.gemma, E=wide)
    logits = b.logits[:rows]
    if logits.dtype == normed.dtype or not logits.is_cuda:
        torch.mm(normed.to(logits.dtype), w.head.T.to(logits.dtype), out=logits)
    else:
        torch.mm(normed, w.head.T, out_dtype=torch.float32, out=logits)
    if not drawing:
        return
    chunks = b.tops.shape[1]
    k.chunk_sums[(rows, chunks)](logits, b.heat, b.tops, b.sums, b.best, c.vocab, chunks, N=_CHUNK)
    k.pick[(rows,)](
        logits, b.heat, b.greedy, b.uniforms, b.tops, b.sums, b.best, b.tokens, b.logprobs, b.newest, b.positions,
        b.step, c.vocab, chunks, rows, STEPS, N=_CHUNK, C=_power(chunks),
    )  # fmt: skip
    b.step.add_(1)


def _linear(x: Tensor, layer: Linear, out: Tensor) -> None:
    weight, bias = layer
    if bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()
