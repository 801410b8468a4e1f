"""Group sampling, the larger half of a step of RL: ponder's engine against transformers, vLLM, llama.cpp and a loop.

Every side writes N completions of exactly so many tokens after each prompt, at temperature 1, and gives each token's
log-probability, from the same weights (llama.cpp also from its 4-bit ones, which is said). Sides take turns, so that a
machine that slows down slows down all; every turn has new prompts. The result says how far each side is from what the
machine could do (weights and keys read once in each pass at the measured bandwidth, products at the measured matrix
rate), and where the rest of ponder's time goes, measured in one more run.

    python bench/engine_groups.py                                     8 prompts x 8 x 32 tokens on a CPU
    python bench/engine_groups.py --device cuda                       32 x 8 x 256
    python bench/engine_groups.py --device cuda --prompts 128
    python bench/engine_groups.py --device cuda --model qwen2.5-1.5b  the shape, with random weights

Peers: pip install transformers xllamacpp vllm; those that are missing are left out, and --backends names others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ponder.types import Ids
from roofline import DecodePass, count_distinct_prefixes, explain_rates, measure_peaks, min_seconds, time_engine
from sampling_backends import Backend, PromptRequest, check_completions
from sampling_harness import (
    fill_default_sizes,
    measure_alternating,
    open_backends,
    prepare_model,
    report_rates,
    result_name,
    sampling_parser,
)

# tokens/s that were promised, by device, model and sequences; and the ratio to the better peer
GOAL_TOKENS_PER_SECOND = {("cuda", "smollm2", 256): 160_000.0, ("cuda", "smollm2", 1024): 300_000.0}
PROMISED_RATIOS = {("cpu", "smollm2", 64): 3.0, ("cuda", "qwen2.5-1.5b", 256): 1.0}


def passes(prompts: list[Ids], n: int, tokens: int) -> list[DecodePass]:
    rows, shared = len(prompts) * n, count_distinct_prefixes(prompts)
    mean = float(np.mean([len(p) for p in prompts]))
    return [DecodePass(rows, shared + rows * t, mean + t) for t in range(tokens)]


def main() -> None:
    own = sampling_parser(__doc__)
    own.add_argument("--prompts", type=int, help="default: 8, on a GPU 32")
    own.add_argument("--n", type=int, default=8, help="completions of each prompt")
    own.add_argument("--tokens", type=int, help="of each completion; default: 32, on a GPU 256")
    args = own.parse_args()
    fill_default_sizes(args, cpu={"prompts": 8, "n": 8, "tokens": 32}, cuda={"prompts": 32, "n": 8, "tokens": 256})
    rows = args.prompts * args.n

    with prepare_model(args, rows, args.tokens) as ready:
        dtype = getattr(torch, ready.setting.dtype)
        machine = measure_peaks(args.device, dtype)
        turns = [ready.encode(turn * args.prompts, args.prompts) for turn in range(2 + args.repeats)]

        def work(side: Backend, turn: int) -> float:
            asks: list[PromptRequest] = [(prompt, args.n) for prompt in turns[turn]]
            return check_completions(side.generate_all(asks, args.tokens), asks, args.tokens)

        with open_backends(ready.sides, ready.setting) as (sides, failed):
            done = measure_alternating(sides, failed, work, args.repeats, args.device)
            with time_engine(args.device) as inside:
                work(sides["ponder"], 1 + args.repeats)
        least = min_seconds(
            ready.config, dtype, count_distinct_prefixes(turns[1]), passes(turns[1], args.n, args.tokens), machine
        )

    total = rows * args.tokens
    model = Path(args.model).name
    key = (args.device, model, rows)
    report_rates(
        f"{result_name('engine_groups', model)}_{rows}",
        f"{args.prompts} prompts x {args.n} completions x {args.tokens} new tokens",
        args, ready, done, total, failed, sides, PROMISED_RATIOS.get(key),
        goal=GOAL_TOKENS_PER_SECOND.get(key),
        **explain_rates(least, total, done.rates(total), inside),
        prompt_tokens=sorted({len(prompt) for prompts in turns for prompt in prompts}),
    )  # fmt: skip


if __name__ == "__main__":
    main()
