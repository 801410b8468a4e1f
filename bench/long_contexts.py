"""Attention at long contexts on a GPU: decoding steps by keys of one program, prefills by tile, as graphs and not.

    python bench/long_contexts.py --out contexts.json
    python bench/long_contexts.py --parts prefill --tiles 2

Parts: `check` compares a decoding step whose tails several programs read with float32 and with one program for each
tail, and says whether repeated steps, and those with other neighbours, are equal to the bit; `decode` times whole steps
by rows, lengths of their tails, keys of one program and tile; `prefill` times passes of new prompts by tile;
`launch` the same with and without a graph; `profile` lists the kernels of a decoding step of mixed tails, with the
engine's keys of one program, and of a prefill. Every part is written when it is done. The weights are random.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from decode_kernels import SMALL_SHAPE, Bench, attention_tile, profile_kernels
from ponder.engine import fused_forward, graph_buffers
from ponder.engine.attention_plan import AttentionPlan, KVSegment
from ponder.engine.fused_forward import PrefillInputs
from ponder.engine.fused_weights import FusedWeights
from ponder.engine.kv_cache import KVCache
from ponder.engine.radix_tree import RadixNode, RadixTree, SlotAllocator
from ponder.engine.scheduler import PrefillChunk
from ponder.types import ids
from training_harness import SHAPES, synchronize

PARTS = ("check", "decode", "prefill", "launch", "profile")
DECODE_TILES = [  # keys at a time, warps, stages, entries by one prefetch (0: none)
    (64, 2, 3, 32), (64, 2, 3, 0), (128, 4, 3, 0), (64, 4, 3, 0), (32, 1, 3, 0), (64, 2, 4, 0), (32, 2, 4, 0),
]  # fmt: skip
PREFILL_TILES: list[tuple[int, dict[str, int]]] = [  # queries of a program, and how it is compiled
    (64, {"num_warps": 4}), (128, {"num_warps": 8, "num_stages": 3}), (128, {"num_warps": 4, "num_stages": 3}),
    (128, {"num_warps": 8, "num_stages": 2}), (128, {"num_warps": 8, "num_stages": 3, "N": 128}),
    (128, {"num_warps": 4, "num_stages": 2, "N": 128}), (64, {"num_warps": 4, "num_stages": 3, "N": 128}),
    (64, {"num_warps": 4, "num_stages": 4}), (128, {"num_warps": 8, "num_stages": 4}),
    (128, {"num_warps": 4, "num_stages": 2}),
]  # fmt: skip


def lengths(rows: int, tail: str, longest: int) -> Tensor:
    """Of the rows' tails: so many keys each, or mixed ones, from 128 (or fewer) to the longest."""
    if tail != "mixed":
        return torch.full((rows,), int(tail))
    return torch.from_numpy(np.random.default_rng(0).integers(min(128, longest), longest, rows, endpoint=True))


@contextmanager
def split_by(bench: Bench, rows: int, keys: int) -> Iterator[None]:
    """So many keys for one program; 0: one program for each row, tails above 1,024 keys in shared segments of 512."""
    b, most = bench.buffers, bench.position + 32
    with ExitStack() as patches:
        if keys:
            b.splits = -(-most // keys)
            patches.enter_context(patch.object(fused_forward, "split_keys", lambda rows: keys))
            if rows * b.splits > len(b.split_values):
                c, old = bench.net.config, (b.split_values, b.split_max, b.split_sum)
                many = rows * b.splits
                b.split_values = old[0].new_empty(many, c.heads, c.head_dim)
                b.split_max, b.split_sum = (old[1].new_empty(many, c.heads) for _ in range(2))
        try:
            yield
        finally:
            b.splits = 1


def place_rows(bench: Bench, positions: Tensor, keys: int) -> bool:
    """Write the rows' tails; True: some are shared segments."""
    b, rows, cut = bench.buffers, len(positions), {}
    for r, position in enumerate(positions.tolist()):
        cut[r] = position if not keys and position > 1024 else 0
        tail = bench.own_slots[r][cut[r] :]
        b.tail_slots[r, : len(tail)] = torch.from_numpy(tail)
    b.tail_starts[:rows] = torch.tensor([cut[r] for r in range(rows)])
    segments = [KVSegment([r], 0, [bench.own_slots[r][: cut[r]]]) for r in range(rows) if cut[r]]
    if segments:
        b.write_shared(AttentionPlan(segments, bench.own_slots[:rows], [cut[r] for r in range(rows)]), rows)
    b.positions[:rows] = positions.to(b.positions.device)
    b.step.zero_()
    return bool(segments)


def step_microseconds(bench: Bench, rows: int, tail: str, keys: int, tile: tuple[int, int, int, int] | None) -> float:
    """Of a whole step."""
    return step(bench, rows, tail, keys, tile, lambda work: timed(bench, work) * 1e6)


def step(
    bench: Bench, rows: int, tail: str, keys: int, tile: tuple[int, int, int, int] | None,
    measure: Callable[[Callable[[], None]], Any],
) -> Any:  # fmt: skip
    positions = lengths(rows, tail, bench.position).to(bench.device)
    with split_by(bench, rows, keys), attention_tile(tile):
        has_shared = place_rows(bench, positions, keys)
        b, tokens = bench.buffers, bench.buffers.last_tokens.clone()

        def work() -> None:
            fused_forward.decode(bench.weights, bench.cache, b, rows, True, has_shared)
            b.positions[:rows] = positions
            b.last_tokens.copy_(tokens)
            b.step.zero_()

        return measure(work)


def timed(bench: Bench, work: Callable[[], Any]) -> float:
    """Seconds, while no other process of this bench times anything."""
    work()  # compiled before the others wait
    synchronize(bench.device)
    with (Path(tempfile.gettempdir()) / "long_contexts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return bench.seconds(work)


def check(config: Any, device: str, rows: int, position: int, keys: int) -> dict[str, Any]:
    """Mean and largest difference of log-probabilities from float32's; and whether steps are equal to the bit."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    bench = Bench(config, device, rows, position, 0, dtype)
    exact = bench.in_float32()
    positions = lengths(rows, "mixed", position).to(device)

    def logits(bench: Bench, keys: int, positions: Tensor = positions) -> Tensor:
        with split_by(bench, rows, keys):
            has_shared = place_rows(bench, positions, keys)
            tokens = bench.buffers.last_tokens.clone()
            fused_forward.decode(bench.weights, bench.cache, bench.buffers, rows, False, has_shared)
            bench.buffers.last_tokens.copy_(tokens)
            return bench.buffers.logits[:rows].clone()

    right = logits(exact, 0).log_softmax(-1)
    ways = {"one program": logits(bench, 0), "several": logits(bench, keys), "float32, several": logits(exact, keys)}
    found: dict[str, Any] = {
        name: {"mean": error.mean().item(), "max": error.max().item()}
        for name, made in ways.items()
        for error in [(made.log_softmax(-1) - right).abs()]
    }
    found["repeats_exactly"] = all(torch.equal(logits(bench, keys), ways["several"]) for _ in range(20))
    others = positions.clone()
    others[1:] = others[1:].flip(0)
    found["neighbours_do_not_matter"] = torch.equal(logits(bench, keys, others)[0], ways["several"][0])
    found["arrivals_are_reset"] = not bench.buffers.arrivals.any().item()
    return found


class Prompts:
    """New prompts of mixed lengths, of so many tokens together."""

    def __init__(self, weights: FusedWeights, cache: KVCache, tokens: int, longest: int) -> None:
        self.weights, self.cache, self.device = weights, cache, cache.device.type
        draw, left, self.chunks = np.random.default_rng(1), tokens, list[PrefillChunk]()
        tree = RadixTree(SlotAllocator(1))
        while left:
            size = min(left, int(draw.integers(min(128, longest), longest, endpoint=True)))
            slots = np.arange(tokens - left, tokens - left + size, dtype=np.int32)
            root = RadixNode(tree, None, ids([]), slots[:0], 0)
            text = ids(draw.integers(3, weights.config.vocab, size))
            self.chunks.append(PrefillChunk(RadixNode(tree, root, text, slots, 0), 0, size))
            left -= size

    def inputs(self) -> PrefillInputs:
        return fused_forward.plan_prefill(self.weights, self.chunks).to_device(self.cache)

    def run(self, inputs: PrefillInputs) -> Tensor:
        return fused_forward.prefill(self.weights, self.cache, inputs)


def prefill_tile(bench: Bench, prompts: Prompts, tile: tuple[int, dict[str, int]]) -> dict[str, float]:
    """Milliseconds of a pass, and of its attention alone."""
    with (
        patch.object(fused_forward, "QUERIES_PER_PREFILL_TILE", tile[0]),
        patch.object(fused_forward, "PREFILL_TILE", tile[1]),
    ):
        inputs, w = prompts.inputs(), prompts.weights
        whole = timed(bench, lambda: prompts.run(inputs)) * 1e3
        attend, c = fused_forward._prefill_attention(w, prompts.cache, inputs), w.config
        qkv = w.embedding.new_zeros(len(inputs.tokens_T), (c.heads + 2 * c.kv_heads) * c.head_dim).normal_()
        mixed = w.embedding.new_empty(len(inputs.tokens_T), c.heads * c.head_dim)

        def attention() -> None:
            for i, layer in enumerate(w.layers):
                attend(i, layer, qkv, mixed)

        return {"pass": whole, "attention": timed(bench, attention) * 1e3}


def launch(bench: Bench, prompts: Prompts) -> dict[str, float]:
    """Milliseconds: planning, launching kernel by kernel, the same until their end, and as a graph."""
    device, found = bench.device, dict[str, float]()
    for _ in range(3):
        began = synchronize(device)
        inputs = prompts.inputs()
        planned = time.perf_counter()
        prompts.run(inputs)
        launched = time.perf_counter()
        ended = synchronize(device)
        seconds = {"plan": planned - began, "launch": launched - planned, "until the end": ended - began}
        found = {name: min(found.get(name, 1e9), took * 1e3) for name, took in seconds.items()}
    found["graph"] = timed(bench, lambda: prompts.run(inputs)) * 1e3
    return found


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--shape", default="smollm2-135m", choices=[*SHAPES, "small"])
    own.add_argument("--device", default="cuda")
    own.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    own.add_argument("--rows", type=int, nargs="+", default=[64, 16, 128, 256])
    own.add_argument(
        "--tails", nargs="+", default=["mixed", "1024", "256"], help="keys of each row; mixed: 128 to longest"
    )
    own.add_argument("--keys", type=int, nargs="+", default=[0, 256, 128, 512, 1024], help="of one program")
    own.add_argument("--longest", type=int, default=2112, help="keys of a tail, tokens of a prompt")
    own.add_argument("--tokens", type=int, nargs="+", default=[8192, 4096, 2048], help="of a prefill")
    own.add_argument("--tiles", type=int, default=99, help="at most")
    own.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after them")
    own.add_argument("--out", type=Path)
    args = own.parse_args()
    began, result = time.perf_counter(), dict[str, Any](shape=args.shape, errors={})
    config = SMALL_SHAPE if args.shape == "small" else SHAPES[args.shape]

    def attempt(part: str, key: str, work: Callable[[], Any]) -> None:
        """Keep a result, or why there is none."""
        if time.perf_counter() - began > args.seconds:
            return
        at = time.perf_counter()
        try:
            with torch.inference_mode():
                value = work()
        except Exception:
            result["errors"][f"{part} {key}"] = traceback.format_exc()[-1500:]
            value = None
        result.setdefault(part, {})[key] = value
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1))
        print(f"{part} {key}: {json.dumps(value)} ({time.perf_counter() - at:.1f} s)", flush=True)

    def decode(rows: int, tails: Sequence[str], tiles: Sequence[tuple[int, int, int, int] | None]) -> None:
        for tile in tiles:
            for tail in tails:
                for keys in args.keys:
                    attempt(
                        "decode", f"{rows} rows, tails {tail}, {keys} keys, {tile or 'own tile'}",
                        partial(step_microseconds, bench, rows, tail, keys, tile),
                    )  # fmt: skip

    if "check" in args.parts:
        for keys in args.keys[1:3]:
            attempt(
                "check", f"{keys} keys", partial(check, config, args.device, min(12, *args.rows), args.longest, keys)
            )
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    if "decode" in args.parts:
        for rows in args.rows:
            bench = Bench(config, args.device, rows, args.longest, 0, dtype)
            decode(rows, args.tails, [None])
            if rows == args.rows[0]:
                decode(rows, args.tails[:1], DECODE_TILES[: args.tiles])
            del bench
    if "profile" in args.parts:
        bench, rows = Bench(config, args.device, args.rows[0], args.longest, 0, dtype), args.rows[0]
        keys, kernels = graph_buffers.split_keys(rows), partial(profile_kernels, bench)
        attempt("profile", f"{rows} rows, {keys} keys", partial(step, bench, rows, "mixed", keys, None, kernels))
        del bench
    if {"prefill", "launch", "profile"} & set(args.parts):
        bench = Bench(config, args.device, 1, 8, 0, dtype)
        cache = KVCache(config, max(args.tokens) + 1, bench.net.device, dtype)
        prompts = [Prompts(bench.weights, cache, tokens, args.longest) for tokens in args.tokens]
        if "launch" in args.parts:
            for tokens, those in zip(args.tokens, prompts, strict=True):
                attempt("launch", f"{tokens} tokens", partial(launch, bench, those))
        if "profile" in args.parts:
            inputs = prompts[0].inputs()
            work = partial(prompts[0].run, inputs)
            attempt("profile", f"{args.tokens[0]} tokens", partial(profile_kernels, bench, work))
        for tile in PREFILL_TILES[: args.tiles] if "prefill" in args.parts else ():
            attempt("prefill", f"{args.tokens[0]} tokens, {tile}", partial(prefill_tile, bench, prompts[0], tile))


if __name__ == "__main__":
    main()
