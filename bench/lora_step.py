"""LoRA against full weights: sampling with one adapter and with several, the learner's step, and whether both agree.

The same network, random weights, the same requests: without an adapter, with one in training, with one or several named
adapters in one batch. Agreement is the difference between the log-probabilities of the sampler and of the learner, for
full weights, for an adapter whose update is as large as a trained one's, and for the same adapter merged into bfloat16
weights. A part that fails says why and leaves the others.

    python bench/lora_step.py --device cuda
    python bench/lora_step.py --device cuda --shape llama-7b
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import make_parser, report
from ponder import event_loop
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.nets import lora
from ponder.nets.config import DecoderConfig, RopeConfig
from ponder.nets.decoder import Decoder
from ponder.nets.flex_attention import FLEX_BLOCK_TOKENS
from ponder.nets.lora import LoRA
from ponder.nets.tree_attention import make_tree_attention
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling, ids
from training_harness import SHAPES, initialise_on, random_groups

SHAPES_HERE = SHAPES | {
    "llama-7b": DecoderConfig(
        "llama", 32000, 4096, 32, 32, 32, 128, mlp_width=11008, context=4096, rope=RopeConfig(10000.0), eos=(2,),
        tied_embeddings=False,
    ),
    "tiny": DecoderConfig(
        "llama", 512, 64, 2, 4, 2, 16, mlp_width=128, context=2048, rope=RopeConfig(10000.0), eos=(2,)
    ),
}  # fmt: skip
B_STD = 0.004  # of B: an update of some percent of the weights, as after a few hundred steps
SMALL_B_STD = 0.0002  # of two thousandths of the weights, as after a few


def make_net(options: Any, adapter: LoRA | None = None) -> Decoder:
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    net = initialise_on(SHAPES_HERE[options.shape], options.device, dtype)
    if adapter is not None:
        lora.attach(net, adapter, seed=0)
        write_b(net, 0)
    return net


def write_b(net: Decoder, seed: int, std: float = B_STD) -> None:
    draw = torch.Generator(net.device).manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if ".lora_B." in name:
                p.copy_(torch.randn(p.shape, generator=draw, device=p.device) * std)


def sample(engine: Engine, options: Any, names: Sequence[str], seed: int) -> list[SequenceState]:
    draw = np.random.default_rng(seed)
    vocab = engine.net.config.vocab
    asks = [
        Request(
            ids(draw.integers(3, vocab, options.prompt)), Sampling(max_tokens=options.tokens), options.n, i,
            names[i % len(names)],
        )
        for i in range(options.prompts)
    ]  # fmt: skip

    async def all_of_them() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*(engine.generate(ask) for ask in asks)))

    return [seq for group in event_loop.run(all_of_them()) for seq in group]


def tokens_per_second(options: Any, net: Decoder, adapters: int = 0) -> dict[str, Any]:
    """Of whole calls, after two to warm up."""
    engine = Engine(net, cache_bytes=int(options.cache_gib * 2**30))
    names = [""]
    with tempfile.TemporaryDirectory() as folder:
        for i in range(adapters):
            trained = make_net(options, LoRA(options.rank))
            write_b(trained, i)
            lora.save(trained, LoRA(options.rank), Path(folder) / str(i), "random")
            engine.adapters.add(f"adapter-{i}", Path(folder) / str(i))
            del trained
        names = [f"adapter-{i}" for i in range(adapters)] or names
        times = []
        for turn in range(3 + options.repeats):
            engine.refresh_weights()
            started = synchronized(options)
            seqs = sample(engine, options, names, turn)
            times.append(synchronized(options) - started)
            if turn == 0 and hasattr(engine._runner, "ready"):
                engine._runner.ready.wait(300)  # type: ignore[union-attr]
    runner = type(engine._runner).__name__
    engine.close()
    total = sum(len(seq.token_ids) for seq in seqs)
    best = statistics.median(times[3:])
    return {"tokens_per_second": total / best, "seconds": times, "tokens": total, "runner": runner}


def synchronized(options: Any) -> float:
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def learner_logprobs(net: Decoder, seq: SequenceState) -> np.ndarray:
    tokens = torch.from_numpy(np.asarray(seq.tokens, np.int64)).to(net.device)
    count = len(tokens) - 1
    filler = -count % FLEX_BLOCK_TOKENS or FLEX_BLOCK_TOKENS  # up to whole blocks, as the packer does
    attend = make_tree_attention([count, filler], [-1, -1], net.config, net.device, net.dtype)
    padded = torch.cat((tokens[:-1], tokens.new_zeros(filler)))
    hidden = net(padded, attend.positions_T, attend)[count - len(seq.token_ids) : count]
    every = torch.log_softmax(net.logits(hidden).double(), -1)
    return every.gather(1, tokens[-len(seq.token_ids) :, None])[:, 0].cpu().numpy()


def agreement(options: Any) -> dict[str, Any]:
    """Differences in nats between the sampler's log-probabilities and the learner's, of the sampled tokens."""
    out = {}
    for name in ("full", "lora", "merged", "lora, small update", "merged, small update"):
        net = make_net(options, None if name == "full" else LoRA(options.rank))
        if "small" in name:
            write_b(net, 0, SMALL_B_STD)
        sampled = net
        if "merged" in name:
            sampled = make_net(options)
            sampled.load_state_dict(lora.merged_weights(net), strict=False)
        engine = Engine(sampled, cache_bytes=1 << 30)
        few = sample(engine, options, [""], 0)  # the first may come from plain passes
        if hasattr(engine._runner, "ready"):
            engine._runner.ready.wait(300)  # type: ignore[union-attr]
        few = sample(engine, options, [""], 1)[:16]
        gaps = np.abs(np.concatenate([learner_logprobs(net, seq) - np.asarray(seq.logprobs) for seq in few]))
        out[name] = {"mean": float(gaps.mean()), "largest": float(gaps.max()), "tokens": len(gaps)}
        engine.close()
        del net, sampled, engine
    return out


def learner_seconds(options: Any, adapter: LoRA | None, compiled: bool) -> dict[str, Any]:
    net = make_net(options, adapter)
    learner = Learner(net, GRPO(kl=None), AdamW(lr=1e-6))
    learner.compiled = learner.compiled and compiled
    times = []
    for turn in range(2 + options.repeats):
        groups = random_groups(net.config, options.prompts, options.n, options.prompt, options.tokens, turn)
        started = synchronized(options)
        learner.step(groups)
        times.append(synchronized(options) - started)
    return {"seconds": statistics.median(times[2:]), "first": times[0]}


def kernel_times(options: Any) -> list[dict[str, Any]]:
    """The update's kernel with x A^T inside and before it, in microseconds, beside the layer's own product."""
    from ponder.engine import fused_forward
    from ponder.engine.adapter_columns import AdapterRows, LowRank, _tiles

    rows_out = []
    for wide, sizes in (
        (576, [576, 192, 192]),
        (1536, [576]),
        (576, [1536, 1536]),
        (4096, [4096] * 3),
        (11008, [4096]),
    ):
        for rows in (8, 256):
            for columns in (16, 64, 128):
                x = torch.randn(rows, wide, device="cuda", dtype=torch.bfloat16)
                weight, out = torch.randn(sum(sizes), wide, device="cuda").bfloat16(), x.new_empty(rows, sum(sizes))
                low = LowRank(
                    torch.randn(len(sizes), columns, wide, device="cuda").bfloat16(),
                    torch.randn(sum(sizes), columns, device="cuda").bfloat16(),
                    torch.tensor(_tiles(sizes, [True] * len(sizes)), dtype=torch.int32, device="cuda"),
                )
                own = AdapterRows.zeros(rows, x.device)
                own.last.fill_(min(16, columns))
                own.scale.fill_(2.0)
                row: dict[str, Any] = {"in": wide, "out": sum(sizes), "rows": rows, "columns": columns}
                row["product"] = graph_microseconds(lambda: torch.mm(x, weight.T, out=out))  # noqa: B023
                before = fused_forward._MAX_RECOMPUTED_PRODUCTS
                for name, bound in (("inside", 1 << 60), ("before", 0)):
                    fused_forward._MAX_RECOMPUTED_PRODUCTS = bound
                    row[name] = graph_microseconds(lambda: fused_forward._add_low_rank(x, low, own, out))  # noqa: B023
                fused_forward._MAX_RECOMPUTED_PRODUCTS = before
                print(row, flush=True)
                rows_out.append(row)
    return rows_out


def graph_microseconds(work: Callable[[], Any], times: int = 50) -> float:
    """One of many calls in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    graph.replay()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / 5 / times * 1e6


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--shape", default="smollm2-135m", choices=list(SHAPES_HERE))
    flags.add_argument("--rank", type=int, default=16)
    flags.add_argument("--adapters", type=int, default=4, help="named adapters in one batch")
    flags.add_argument("--prompts", type=int, default=32)
    flags.add_argument("--n", type=int, default=8)
    flags.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    flags.add_argument("--tokens", type=int, default=256)
    flags.add_argument("--repeats", type=int, default=3)
    flags.add_argument("--cache-gib", type=float, default=16.0)
    flags.add_argument("--parts", nargs="+", help="default: all")
    options = flags.parse_args()
    parts: dict[str, Callable[[], Any]] = {
        "full": lambda: tokens_per_second(options, make_net(options)),
        "in training": lambda: tokens_per_second(options, make_net(options, LoRA(options.rank))),
        "one adapter": lambda: tokens_per_second(options, make_net(options), 1),
        "several adapters": lambda: tokens_per_second(options, make_net(options), options.adapters),
        "nf4 in training": lambda: tokens_per_second(options, make_net(options, LoRA(options.rank, base="nf4"))),
        "agreement": lambda: agreement(options),
        "learn full": lambda: learner_seconds(options, None, True),
        "learn lora": lambda: learner_seconds(options, LoRA(options.rank), True),
        "learn lora, not compiled": lambda: learner_seconds(options, LoRA(options.rank), False),
    }
    if options.device == "cuda":
        parts["kernels"] = lambda: kernel_times(options)
    results: dict[str, Any] = {}
    for name, measure in parts.items():
        if options.parts and name not in options.parts:
            continue
        try:
            results[name] = measure()
        except Exception as why:
            traceback.print_exc()
            results[name] = {"error": f"{type(why).__name__}: {why!s:.300}"}
        if options.device == "cuda":
            torch.cuda.empty_cache()
        print(f"{name}: {results[name]}", flush=True)
    rate = {name: found.get("tokens_per_second") for name, found in results.items() if isinstance(found, dict)}
    report(
        f"lora_step_{options.shape.replace('-', '_').replace('.', '_')}",
        f"{options.shape}, random weights: {options.prompts} x {options.n} x {options.tokens} tokens with a LoRA "
        f"adapter of rank {options.rank} in training, against full weights",
        rate.get("in training") or 0.0,
        {"full weights": rate.get("full")},
        promised=1 / 1.3,
        unit="tokens/s",
        device=options.device,
        packages=["triton", "peft"],
        details=results,
    )


if __name__ == "__main__":
    main()
