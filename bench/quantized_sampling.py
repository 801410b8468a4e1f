"""Where sampling with weights of one byte pays: `Engine(quantization="int8")` and "fp8" beside the network's own type.

Random weights with the shape of a public model, prompts of random tokens, every sequence from a prompt of its own, so
many new tokens each with log-probabilities. Sequences at once differ: few are bound by reading the weights, many by
products. The kept figure is that of int8 with the fewest sequences; the rates of every number of sequences are in
`details`, with the mean log-probability of what was sampled.

    python bench/quantized_sampling.py --device cuda
"""

from __future__ import annotations

import asyncio
import gc
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import RESULTS, make_parser, report
from ponder.engine.engine import Engine
from ponder.engine.request import Request, SequenceState
from ponder.nets.decoder import Decoder
from ponder.types import Sampling, ids
from training_harness import SHAPES, initialise_on, synchronize


def sample(engine: Engine, rows: int, prompt: int, tokens: int, seed: int) -> list[SequenceState]:
    draw = np.random.default_rng(seed)
    vocab, sampling = engine.net.config.vocab, Sampling(max_tokens=tokens)
    asks = [Request(ids(draw.integers(3, vocab, prompt)), sampling, 1, i) for i in range(rows)]

    async def all_of_them() -> list[list[SequenceState]]:
        return list(await asyncio.gather(*(engine.generate(ask) for ask in asks)))

    return [seq for group in asyncio.run(all_of_them()) for seq in group]


def measure(net: Decoder, kind: str, options: Any) -> dict[int, dict[str, Any]]:
    """By sequences at once: tokens a second in the median of the repeats, after two runs to warm up."""
    engine = Engine(
        net, cache_bytes=int(options.cache_gib * 2**30), max_num_seqs=max(options.rows), quantization=kind
    )  # fmt: skip
    result: dict[int, dict[str, Any]] = {}
    for rows in options.rows:
        times = []
        for turn in range(2 + options.repeats):
            began = synchronize(options.device)
            seqs = sample(engine, rows, options.prompt, options.tokens, turn)
            times.append(synchronize(options.device) - began)
            engine.wait_for_kernels()
        assert all(len(seq.token_ids) == options.tokens for seq in seqs)
        mean = float(np.mean([np.mean(seq.logprobs) for seq in seqs]))
        rate = rows * options.tokens / statistics.median(times[2:])
        result[rows] = {"tokens_per_second": rate, "seconds": times[2:], "mean_logprob": mean}
        print(f"{kind or 'own type'}, {rows} sequences: {rate:,.0f} tokens/s", flush=True)
    engine.close()
    del engine
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    return result


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--shape", choices=list(SHAPES), default="qwen2.5-7b")
    flags.add_argument("--layers", type=int, help="fewer than the shape has: to fill compile caches, or to try it out")
    flags.add_argument("--kinds", nargs="+", default=["int8", "fp8"])
    flags.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64], help="sequences at once")
    flags.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    flags.add_argument("--tokens", type=int, default=64, help="new tokens of each sequence")
    flags.add_argument("--repeats", type=int, default=3)
    flags.add_argument("--cache-gib", type=float, default=4.0)
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    flags.add_argument("--results", type=Path, default=RESULTS, help="folder that the result is written to")
    options = flags.parse_args()
    config = replace(SHAPES[options.shape], context=4096)
    config = replace(config, layers=options.layers or config.layers, windows=())
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    net = initialise_on(config, options.device, dtype)
    own = str(dtype).removeprefix("torch.")
    rates = {own: measure(net, "", options)}
    few = min(options.rows)
    for kind in options.kinds:
        rates[kind] = measure(net, kind, options)
        others = {name: each[few]["tokens_per_second"] for name, each in rates.items() if name != "int8"}
        if "int8" not in rates:
            continue
        report(  # again after every kind: a run that is cut has the others
            f"quantized_sampling_{options.shape.replace('-', '_').replace('.', '_')}",
            f"{options.shape} shape: {few} at once, {options.prompt} + {options.tokens} tokens each, int8 weights",
            rates["int8"][few]["tokens_per_second"],
            others,
            unit="tokens/s",
            device=options.device,
            packages=["triton"],
            details={"rates": rates, "layers": config.layers, "note": options.note},
            results=options.results,
        )


if __name__ == "__main__":
    main()
