"""A decoding step on a GPU, kernel by kernel: is each right, how fast is it with which tile, and the whole step?

    python bench/decode_kernels.py --out kernels.json
    python bench/decode_kernels.py --parts passes profile --rows 256 1024

Parts: `check` compares kernels with torch and a step with the other way to compute it, both also in float32; `sweep`
times every product with tiles of several sizes, over the weights of all layers; `attention` the same for attention;
`passes` times whole steps with decode_kernels.py and without, with the tiles that the sweep found best if it ran;
`divided` times whole steps, of which parts of the rows run at the same time, and compares what they sample;
`tune` times whole steps with other tiles of attention, and with weights fetched early or not; `profile` lists the
kernels of whole steps. Every part is written when it is done. The weights are random.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ponder.engine import decode_forward, fused_forward
from ponder.engine.adapter_columns import AdapterColumns
from ponder.engine.attention_plan import AttentionPlan, KVSegment
from ponder.engine.decode_forward import DecodeStep, Tile
from ponder.engine.fused_weights import FusedWeights
from ponder.engine.graph_batch import GraphBatch
from ponder.engine.graph_buffers import STEPS_PER_LAUNCH, GraphBuffers
from ponder.engine.graph_capture import side_stream
from ponder.engine.kv_cache import KVCache
from ponder.nets.config import DecoderConfig
from training_harness import SHAPES, initialise_on

PARTS = ("check", "sweep", "passes", "attention", "tune", "profile", "divided")
SMALL_SHAPE = DecoderConfig("llama", 300, 64, 2, 4, 2, 16, mlp_width=128, context=512, eos=(2,))  # to try it out
LINEAR_TILES = [
    Tile(64, 32, 64, 4, 4), Tile(32, 32, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(128, 64, 64, 8, 3),
    Tile(64, 32, 64, 4, 4, True), Tile(32, 64, 64, 4, 4), Tile(128, 64, 64, 4, 3), Tile(128, 128, 64, 8, 3),
    Tile(32, 32, 64, 4, 4, True), Tile(128, 32, 64, 4, 4), Tile(64, 64, 64, 4, 4, True), Tile(16, 32, 64, 4, 5),
    Tile(32, 16, 64, 4, 5), Tile(64, 32, 64, 4, 6), Tile(64, 16, 64, 4, 5), Tile(16, 16, 64, 2, 5),
]  # fmt: skip
LONG_TILES = [  # for many inputs and few outputs
    Tile(32, 32, 128, 4, 4), Tile(64, 32, 128, 4, 3), Tile(64, 64, 128, 4, 3), Tile(32, 32, 128, 4, 4, True),
    Tile(16, 32, 128, 4, 4), Tile(32, 32, 128, 8, 4),
]  # fmt: skip
TILES = {
    "gate_up": LINEAR_TILES,
    "down": LONG_TILES[:3] + LINEAR_TILES[:4] + LONG_TILES[3:] + LINEAR_TILES[4:],
    "qkv": LINEAR_TILES,
    "out": LINEAR_TILES[:4] + LONG_TILES[:2] + LINEAR_TILES[4:],
}
ATTENTION_TILES = [  # keys at a time, warps, stages, entries by one prefetch (0: none)
    (64, 2, 3, 32), (64, 2, 3, 0), (64, 4, 3, 32), (64, 4, 3, 0), (64, 2, 3, 64), (32, 1, 3, 32), (128, 4, 3, 32),
    (64, 2, 4, 32), (32, 1, 3, 0), (128, 4, 3, 0),
]  # fmt: skip
_REPLAYS = 10


class Bench:
    """A network with random weights, a filled cache, and rows in the middle of their completions."""

    def __init__(
        self, config: DecoderConfig, device: str, rows: int, position: int, shared: int, dtype: torch.dtype
    ) -> None:
        self.device, self.max_rows, self.position, self.shared = device, rows, position, shared
        self.net = initialise_on(config, device, dtype)
        self.weights = FusedWeights(self.net, 64)
        own = position + 32 - shared
        slots = rows // 8 * shared + rows * own + shared + 1
        self.cache = KVCache(config, slots, self.net.device, dtype)
        for kv in self.cache.kv:
            kv.normal_(0, 0.5)
        self.buffers = GraphBuffers(self.net, rows, slots - 1)
        b, draw = self.buffers, torch.Generator().manual_seed(0)
        b.last_tokens.copy_(torch.randint(config.vocab, (rows,), generator=draw))
        b.uniforms.copy_(torch.rand(b.uniforms.shape, generator=draw, dtype=torch.float64))
        first = rows // 8 * shared + shared
        self.own_slots = [first + r * own + np.arange(own, dtype=np.int32) for r in range(rows)]
        self.shared_slots = [r // 8 * shared + np.arange(shared, dtype=np.int32) for r in range(rows)]

    def in_float32(self) -> Bench:
        """The same weights, keys and values in float32."""
        net = self.net
        other = Bench(net.config, self.device, self.max_rows, self.position, self.shared, torch.float32)
        with torch.no_grad():
            for mine, own in zip(other.net.parameters(), net.parameters(), strict=True):
                mine.copy_(own)
            for there, here in zip(other.cache.kv, self.cache.kv, strict=True):
                there.copy_(here)
        other.weights = FusedWeights(other.net, 64)
        return other

    def lay_out(self, rows: int, has_shared: bool, parts: int = 1) -> None:
        """Rows of groups of eight that share their prompts, read once (`has_shared`) or by each row."""
        b = self.buffers
        if has_shared:
            segments = [
                KVSegment(list(range(r, min(r + 8, rows))), 0, [self.shared_slots[r]]) for r in range(0, rows, 8)
            ]
            b.write_shared(AttentionPlan(segments, self.own_slots[:rows], [self.shared] * rows), rows, parts)
        for r in range(rows):
            tail = self.own_slots[r] if has_shared else np.concatenate([self.shared_slots[r], self.own_slots[r]])
            b.tail_slots[r, : len(tail)] = torch.from_numpy(tail)
        b.tail_starts.fill_(self.shared if has_shared else 0)
        self.lay_out_again()

    def lay_out_again(self) -> None:
        """After steps: the rows are where they were."""
        self.buffers.positions.fill_(self.position)
        self.buffers.steps.zero_()

    def step(self, rows: int, has_shared: bool) -> Callable[[], None]:
        """A whole step, after which the rows are where they were."""
        b = self.buffers
        tokens = b.last_tokens.clone()

        def work() -> None:
            fused_forward.decode(self.weights, self.cache, b, rows, True, has_shared)
            b.positions.fill_(self.position)
            b.last_tokens.copy_(tokens)
            b.step.zero_()

        return work

    def seconds(self, work: Callable[[], None]) -> float:
        """Of one run, in a CUDA graph."""
        replay = self.captured(work)
        replay()
        if self.device != "cuda":
            began = time.perf_counter()
            replay()
            return time.perf_counter() - began
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        best = float("inf")
        for _ in range(3):
            begin.record()
            for _ in range(_REPLAYS):
                replay()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3 / _REPLAYS)
        return best

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.device != "cuda":
            return work
        with side_stream(self.net.device):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay


@contextmanager
def decode_kernels(on: bool) -> Iterator[None]:
    old = os.environ.get("PONDER_DECODE_KERNELS", "")
    os.environ["PONDER_DECODE_KERNELS"] = str(int(on))
    try:
        yield
    finally:
        os.environ["PONDER_DECODE_KERNELS"] = old


def check(bench: Bench, rows: int) -> dict[str, Any]:
    """The largest difference of each kernel from float32 torch, relative to the largest number; of a step's
    log-probabilities from the other way's, and of both from those of the other way in float32; and whether two runs are
    equal."""
    w, b = bench.weights, bench.buffers
    step, layer = DecodeStep(w, b, rows), w.layers[0]
    found: dict[str, Any] = {}

    def compare(name: str, ours: Tensor, right: Tensor) -> None:
        found[name] = ((ours.float() - right).abs().max() / right.abs().max()).item()

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight.float(), w.config.norm_eps)

    step.embed()
    x = w.embedding[b.last_tokens[:rows]].float()
    compare("embed", step.stream, x)
    step.compute_qkv(layer)
    first = layer.block.input_layernorm.weight
    compare("qkv", step.qkv, norm(x, first) @ layer.qkv.weight.float().T)
    step.mixed.normal_()
    step.add_attention(layer)
    x = x + step.mixed.float() @ layer.out.weight.float().T
    compare("out", step.stream, x)
    x = step.stream.float().clone()
    step.compute_gated(layer)
    gate, up = (norm(x, layer.block.post_attention_layernorm.weight) @ layer.gate_up.weight.float().T).chunk(2, 1)
    compare("gate_up", step.gated, torch.nn.functional.silu(gate) * up)
    step.add_feedforward(layer, w.norm)
    x = x + step.gated.float() @ layer.down.weight.float().T
    compare("down", step.stream, x)
    compare("norm", step.normalize_stream(), norm(step.stream, w.norm))

    def one_step(kernels: bool, has_shared: bool, bench: Bench = bench) -> tuple[Tensor, Tensor, Tensor]:
        b = bench.buffers
        with decode_kernels(kernels):
            bench.lay_out(rows, has_shared)
            bench.step(rows, has_shared)()
        return b.logits[:rows].clone(), b.tokens[:rows, 0].clone(), b.logprobs[:rows, 0].clone()

    exact_bench = bench.in_float32()
    for has_shared in (False, True):
        exact = one_step(False, has_shared, exact_bench)[0].log_softmax(-1)
        old, new, again = one_step(False, has_shared), one_step(True, has_shared), one_step(True, has_shared)
        apart = (new[0].log_softmax(-1) - old[0].log_softmax(-1)).abs()
        found["shared" if has_shared else "own"] = {
            "logprob_difference_max": apart.max().item(),
            "logprob_difference_mean": apart.mean().item(),
            "error_to_float32": {
                name: {"mean": error.mean().item(), "max": error.max().item()}
                for name, made in (("before", old), ("decode_kernels", new))
                for error in [(made[0].log_softmax(-1) - exact).abs()]
            },
            "same_tokens": (new[1] == old[1]).float().mean().item(),
            "repeats_exactly": all(torch.equal(x, y) for x, y in zip(new, again, strict=True)),
            "logprob_of_token_off": (
                new[0].log_softmax(-1).gather(1, new[1].long()[:, None])[:, 0] - new[2]
            ).abs().max().item(),
        }  # fmt: skip
    return found


def sweep_steps(bench: Bench, kind: str, rows: int, tile: Tile) -> float:
    """Microseconds of one product with this tile: over all layers, so that weights come from memory."""
    w, others = bench.weights, dict.fromkeys(("out", "down"), Tile(32, 32, 64, 4, 4))
    step = DecodeStep(w, bench.buffers, rows, tiles={**others, kind: tile})
    step.sums.fill_(1.0)
    for x in (step.scaled, step.mixed, step.gated, step.stream):
        x.zero_()

    def work() -> None:
        for layer in w.layers:
            if kind == "qkv":
                step.compute_qkv(layer)
            elif kind == "out":
                step.add_attention(layer)
            elif kind == "gate_up":
                step.compute_gated(layer)
            else:
                step.add_feedforward(layer, w.norm)

    return bench.seconds(work) * 1e6 / len(w.layers)


def attention_microseconds(
    bench: Bench, rows: int, keys: int, warps: int, stages: int, fetched: int, has_shared: bool
) -> float:
    """Of one layer's attention."""
    w, b = bench.weights, bench.buffers
    step = DecodeStep(w, b, rows)
    step.qkv.normal_()
    with attention_tile((keys, warps, stages, fetched)):
        attend = fused_forward._decode_attention(w, bench.cache, b, rows, has_shared, step.pdl)

        def work() -> None:
            for i, layer in enumerate(w.layers):
                attend(i, layer, step.qkv, step.mixed)

        return bench.seconds(work) * 1e6 / len(w.layers)


@contextmanager
def attention_tile(tile: tuple[int, int, int, int] | None) -> Iterator[None]:
    """One of ATTENTION_TILES instead of the engine's own."""
    real = decode_forward.attention_tile_for
    if tile is not None:
        decode_forward.attention_tile_for = lambda *_: decode_forward.AttentionTile(*tile)
    try:
        yield
    finally:
        decode_forward.attention_tile_for = real


def tune(bench: Bench, rows: int, tiles: int) -> dict[str, Any]:
    """Microseconds of a whole step with one thing changed after the other; what is faster stays for the next."""
    times: dict[str, float] = {}
    attention: tuple[int, int, int, int] | None = None  # the engine's own
    products = {name: decode_forward.tile_for(name, rows) for name in TILES}

    def took(name: str) -> float:
        with attention_tile(attention):
            for product, tile in products.items():
                decode_forward.TILES[product] = {rows: tile}
            times[name] = whole_step(bench, "passes", rows, False, True)
        return times[name]

    engines = dict(decode_forward.TILES)
    try:
        best = took("as it is")
        for other in ATTENTION_TILES[:tiles]:
            old, attention = attention, other
            if (now := took(f"attention {other}")) < best:
                best = now
            else:
                attention = old
        for product, tile in list(products.items()):
            products[product] = tile._replace(fetches=not tile.fetches)
            if (now := took(f"{product} {products[product]}")) < best:
                best = now
            else:
                products[product] = tile
    finally:
        decode_forward.TILES.update(engines)
    return {"times": times, "best": best, "attention": attention, "products": products}


# Of parts of a step: tiles of products and of attention. Those of other numbers of rows, and wide ones of few programs.
_64 = {name: decode_forward.tile_for(name, 64) for name in TILES}
_256 = {name: decode_forward.tile_for(name, 256) for name in TILES}
_1024 = {name: decode_forward.tile_for(name, 1024) for name in TILES}
_WIDE = {"qkv": Tile(64, 64, 64, 4, 4), "out": Tile(64, 64, 64, 4, 4), "gate_up": Tile(64, 64, 64, 4, 4),
         "down": Tile(64, 64, 64, 4, 4)}  # fmt: skip
_TALL = {"qkv": Tile(128, 64, 64, 8, 3), "out": Tile(128, 32, 64, 4, 4), "gate_up": Tile(128, 64, 64, 8, 3),
         "down": Tile(128, 32, 64, 4, 4)}  # fmt: skip
_SHORT = {"qkv": Tile(32, 32, 64, 4, 4), "out": Tile(32, 32, 64, 4, 4), "gate_up": Tile(32, 32, 64, 4, 4),
          "down": Tile(32, 32, 128, 4, 4)}  # fmt: skip
PART_TILES: dict[str, dict[str, Tile] | None] = {
    "own": None, "256": _256, "64": _64, "1024": _1024, "wide": _WIDE, "tall": _TALL, "short": _SHORT,
}  # fmt: skip
PART_ATTENTION: dict[str, tuple[int, int, int, int] | None] = {
    "own": None, "32": (32, 1, 3, 0), "64": (64, 2, 3, 0), "128": (128, 4, 3, 0), "64 x 1": (64, 1, 2, 0),
}  # fmt: skip
# (products, attention) in the order in which they are tried
PART_SETS = [
    ("own", "own"), ("256", "32"), ("64", "64"), ("wide", "32"), ("256", "128"), ("64", "32"), ("tall", "32"),
    ("short", "32"), ("256", "64"), ("1024", "32"), ("wide", "128"), ("wide", "64 x 1"), ("own", "64 x 1"),
]  # fmt: skip


def divided(
    bench: Bench, rows: int, parts: int, tiles: str, attention: str, kernels: bool = True, has_shared: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Microseconds of a step whose rows are divided into so many parts, and the tokens that were sampled."""
    b, columns = bench.buffers, AdapterColumns(bench.net, bench.weights, lambda: None)
    batch = GraphBatch(bench.weights, columns, bench.cache, b, bench.cache.kv[0].shape[2] - 1, True)
    batch.bucket, batch.parts, batch._has_shared = rows, parts, has_shared
    bench.lay_out(rows, has_shared, parts)
    tokens = b.last_tokens.clone()
    chosen = PART_TILES[tiles]
    engines, old_rows = dict(decode_forward.TILES), decode_forward.MAX_ROWS
    decode_forward.MAX_ROWS = rows if kernels else 0
    times: list[float] = []
    try:
        if chosen is not None:
            decode_forward.TILES.update({name: {rows: tile} for name, tile in chosen.items()})
        with attention_tile(PART_ATTENTION[attention]):
            for _ in range(6):
                bench.lay_out_again()
                b.last_tokens.copy_(tokens)
                b.steps.zero_()
                if bench.device == "cuda":
                    torch.cuda.synchronize()
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    batch.run(steps=STEPS_PER_LAUNCH)
                    end.record()
                    end.synchronize()
                    times.append(begin.elapsed_time(end) * 1e3 / STEPS_PER_LAUNCH)
                else:
                    began = time.perf_counter()
                    batch.run(steps=2)
                    times.append((time.perf_counter() - began) * 1e6 / 2)
                    break
    finally:
        decode_forward.TILES.update(engines)
        decode_forward.MAX_ROWS = old_rows
    found = {"tokens": b.tokens[:rows].clone(), "logprobs": b.logprobs[:rows].clone()}
    b.last_tokens.copy_(tokens)
    return {"microseconds": times, "found": found}


def compare_divided(
    bench: Bench, rows: int, parts: int, tiles: str, attention: str, kernels: bool, whole: dict[str, Any],
    has_shared: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Also the share of rows with the same tokens as the first such call for these rows had, and how far their
    log-probabilities are apart in the first step."""
    ours = divided(bench, rows, parts, tiles, attention, kernels, has_shared)
    found = ours.pop("found")
    first = whole.setdefault(str(rows), found)
    return ours | {
        "best": min(ours["microseconds"]),
        "same": (found["tokens"] == first["tokens"]).all(1).float().mean().item(),
        "same_first": (found["tokens"][:, 0] == first["tokens"][:, 0]).float().mean().item(),
        "apart": (found["logprobs"] - first["logprobs"])[:, 0][found["tokens"][:, 0] == first["tokens"][:, 0]]
        .abs().mean().item(),
    }  # fmt: skip


def profile(bench: Bench, rows: int, has_shared: bool) -> list[dict[str, Any]]:
    """Kernels of a step: their number, and their microseconds in all."""
    bench.lay_out(rows, has_shared)
    return profile_kernels(bench, bench.step(rows, has_shared))


def profile_kernels(bench: Bench, work: Callable[[], Any]) -> list[dict[str, Any]]:
    replay, times = bench.captured(work), 5
    replay()
    if bench.device != "cuda":
        return []
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(times):
            replay()
        torch.cuda.synchronize()
    kernels = [
        {"kernel": e.key[:120], "count": e.count / times, "microseconds": e.self_device_time_total / times}
        for e in recorded.key_averages()
        if e.self_device_time_total
    ]
    return sorted(kernels, key=lambda k: -k["microseconds"])


def whole_step(bench: Bench, part: str, rows: int, has_shared: bool, kernels: bool) -> Any:
    """Its kernels, or its microseconds."""
    with decode_kernels(kernels):
        bench.lay_out(rows, has_shared)
        if part == "profile":
            return profile(bench, rows, has_shared)
        return bench.seconds(bench.step(rows, has_shared)) * 1e6


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--shape", default="smollm2-135m", choices=[*SHAPES, "small"])
    own.add_argument("--device", default="cuda")
    own.add_argument("--rows", type=int, nargs="+", default=[256, 1024, 64])
    own.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    own.add_argument("--position", type=int, default=230, help="tokens before the newest")
    own.add_argument("--shared", type=int, default=60, help="of them, shared by eight rows each")
    own.add_argument("--divide", type=int, nargs="+", default=[1, 2, 4, 8], help="parts of the rows at the same time")
    own.add_argument("--tiles", type=int, default=99, help="of each product at most")
    own.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after them")
    own.add_argument("--out", type=Path)
    args = own.parse_args()
    began, result = time.perf_counter(), dict[str, Any](shape=args.shape, errors={})
    config = SMALL_SHAPE if args.shape == "small" else SHAPES[args.shape]

    def save() -> None:
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1))

    def attempt(part: str, key: str, work: Callable[[], Any]) -> Any:
        """Keep a result, or why there is none."""
        if time.perf_counter() - began > args.seconds:
            return None
        at = time.perf_counter()
        try:
            with torch.inference_mode():
                value = work()
        except Exception:
            result["errors"][f"{part} {key}"] = traceback.format_exc()[-1500:]
            value = None
        result.setdefault(part, {})[key] = value
        save()
        print(f"{part} {key}: {json.dumps(value)[:300]} ({time.perf_counter() - at:.1f} s)", flush=True)
        return value

    def sweep_attention() -> None:
        for rows in args.rows:
            for has_shared in (False, True):
                bench.lay_out(rows, has_shared)
                for tile in ATTENTION_TILES[: args.tiles]:
                    attempt(
                        "attention", f"{rows} {'shared' if has_shared else 'own'} {tile}",
                        partial(attention_microseconds, bench, rows, *tile, has_shared),
                    )  # fmt: skip

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    bench = Bench(config, args.device, max(args.rows), args.position, args.shared, dtype)
    print(f"ready after {time.perf_counter() - began:.1f} s", flush=True)
    if "check" in args.parts:
        for rows in args.rows:
            attempt("check", f"{rows}", partial(check, bench, rows))
    if "sweep" in args.parts:
        best: dict[tuple[str, int], tuple[float, Tile]] = {}
        for i in range(min(args.tiles, max(map(len, TILES.values())))):
            for kind, tiles in TILES.items():
                for rows in args.rows if i < len(tiles) else ():
                    took = attempt(
                        "sweep", f"{kind} {rows} {tuple(tiles[i])}",
                        partial(sweep_steps, bench, kind, rows, tiles[i]),
                    )  # fmt: skip
                    if took is not None:
                        best[kind, rows] = min(best.get((kind, rows), (1e9, tiles[i])), (took, tiles[i]))
        for (kind, rows), (_, tile) in best.items():
            decode_forward.TILES[kind] = dict(sorted({**decode_forward.TILES[kind], rows: tile}.items()))
        result["best"] = {f"{kind} {rows}": [took, *tile] for (kind, rows), (took, tile) in best.items()}
    if "divided" in args.parts:
        whole: dict[str, Any] = {}
        for products, attention in PART_SETS[: args.tiles]:
            for rows in args.rows:
                for many in [n for n in args.divide if rows % n == 0 and (n > 1 or rows <= 256 or products == "own")]:
                    for shared in (False, True) if products == "own" else (False,):
                        for kernels in (True, False) if products == "own" and rows // many >= 256 else (True,):
                            attempt(
                                "divided", f"{rows} in {many}, products {products}, attention {attention}"
                                + (", shared" if shared else "") + ("" if kernels else ", separate kernels"),
                                partial(
                                    compare_divided, bench, rows, many, products, attention, kernels, whole, shared
                                ),
                            )  # fmt: skip
    for part in [part for part in ("passes", "attention", "tune", "profile") if part in args.parts]:
        if part == "attention":
            sweep_attention()
            continue
        if part == "tune":
            for rows in args.rows:
                attempt("tune", f"{rows}", partial(tune, bench, rows, args.tiles))
            continue
        for rows in args.rows:
            for has_shared in (False, True):
                for kernels in (False, True):
                    name = f"{rows} {'shared' if has_shared else 'own'} {'decode_kernels' if kernels else 'before'}"
                    attempt(part, name, partial(whole_step, bench, part, rows, has_shared, kernels))
    save()


if __name__ == "__main__":
    main()
