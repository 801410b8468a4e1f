"""Tree search: many problems grow their beams step by step, all at once, and paths of one problem share prefixes.

Each problem begins with its prompt, continued as often as it has beams. After every step, beams are drawn with
replacement from those just written, so some end and some fork; each goes on from the tokens that its own side wrote.
The draws are the same for all sides, so all get the same number of requests, of the same lengths, that share the same
parts: token prefixes with a number of continuations, those of one parent in one request. A problem asks again when its
own step is done. ponder keeps every path in its radix tree, vLLM has its prefix cache, llama.cpp what its slots still
hold; transformers takes all requests in one batch and computes each prefix anew.

    python bench/engine_tree.py                   4 problems, 16 beams, 4 steps of 8 tokens on a CPU
    python bench/engine_tree.py --device cuda     64 problems, 16 beams, 20 steps of 32 tokens

Turns, limits and what is inside ponder's time: as in engine_groups.py.
"""

from __future__ import annotations

import numpy as np
import torch

from ponder.types import Ids, ids
from roofline import DecodePass, count_distinct_prefixes, explain_rates, measure_peaks, min_seconds, time_engine
from sampling_backends import Backend, CompletionGroup, Search, check_completions
from sampling_harness import (
    fill_default_sizes,
    measure_alternating,
    open_backends,
    prepare_model,
    report_rates,
    result_name,
    sampling_parser,
)

PROMISED_TREE_RATIOS = {"cuda": 3.0}  # promised, against vLLM
_FIRST_FAKE_TOKEN = 1 << 24  # tokens from here on are no model's


def search(prompt: Ids, beams: int, steps: int, tokens: int, seed: int, text: list[float]) -> Search:
    draw = np.random.default_rng(seed)
    asks = [(prompt, beams)]
    for _ in range(steps):
        answers = yield asks
        text.append(check_completions(answers, asks, tokens))
        written = [(path, new) for (path, _), group in zip(asks, answers, strict=True) for new, _ in group]
        chosen, times = np.unique(draw.integers(0, beams, beams), return_counts=True)
        asks = [(np.concatenate(written[i]), int(n)) for i, n in zip(chosen, times, strict=True)]


def passes(prompts: list[Ids], beams: int, steps: int, tokens: int) -> tuple[list[DecodePass], dict[str, float]]:
    """What must be read in each pass, and how much is shared: the searches with made-up tokens, each of which is
    unique, so that the distinct ones among all paths are those whose keys must be kept."""
    searches = [search(p, beams, steps, tokens, seed, []) for seed, p in enumerate(prompts)]
    asked = [next(s) for s in searches]
    rows, next_fake = beams * len(prompts), _FIRST_FAKE_TOKEN
    out: list[DecodePass] = []
    sent = kept = 0
    for step in range(steps):
        paths = [path for asks in asked for path, _ in asks]
        written = np.concatenate(paths)
        keys = count_distinct_prefixes(prompts) + len(np.unique(written[written >= _FIRST_FAKE_TOKEN]))
        context = float(np.mean([len(path) for path in paths]))
        out += [DecodePass(rows, keys + rows * t, context + t) for t in range(tokens)]
        sent += sum(len(path) * n for asks in asked for path, n in asks)
        kept += keys
        for i, (tree, asks) in enumerate(zip(searches, asked, strict=True)):
            answers: list[CompletionGroup] = []
            for _, n in asks:
                new = np.arange(next_fake, next_fake + n * tokens, dtype=np.int32).reshape(n, tokens)
                next_fake += n * tokens
                answers.append([(ids(row), np.zeros(tokens, np.float32)) for row in new])
            if step < steps - 1:
                asked[i] = tree.send(answers)
    return out, {"prefix_tokens_sent": sent, "of_them_distinct": kept}


def main() -> None:
    own = sampling_parser(__doc__)
    own.add_argument("--problems", type=int, help="default: 4, on a GPU 64")
    own.add_argument("--beams", type=int, default=16)
    own.add_argument("--steps", type=int, help="default: 4, on a GPU 20")
    own.add_argument("--tokens-per-step", type=int, help="of each step; default: 8, on a GPU 32")
    args = own.parse_args()
    fill_default_sizes(
        args,
        cpu={"problems": 4, "beams": 16, "steps": 4, "tokens_per_step": 8},
        cuda={"problems": 64, "beams": 16, "steps": 20, "tokens_per_step": 32},
    )
    rows, shape = args.problems * args.beams, (args.beams, args.steps, args.tokens_per_step)

    with prepare_model(args, rows, args.steps * args.tokens_per_step) as ready:
        if "plain loop" in ready.sides and not args.backends:
            ready.sides.remove("plain loop")  # it shares nothing but prompts: measured where someone asks for it
        dtype = getattr(torch, ready.setting.dtype)
        machine = measure_peaks(args.device, dtype)
        turns = [ready.encode(turn * args.problems, args.problems) for turn in range(2 + args.repeats)]

        def work(side: Backend, turn: int) -> float:
            text: list[float] = []
            searches = [search(prompt, *shape, seed, text) for seed, prompt in enumerate(turns[turn])]
            side.run_searches(searches, args.tokens_per_step)
            assert len(text) == args.problems * args.steps, "a search ended early"
            return float(np.mean(text))

        with open_backends(ready.sides, ready.setting) as (sides, failed):
            done = measure_alternating(sides, failed, work, args.repeats, args.device)
            with time_engine(args.device) as inside:
                work(sides["ponder"], 1 + args.repeats)
        needed, sharing = passes(turns[1], *shape)
        least = min_seconds(ready.config, dtype, count_distinct_prefixes(turns[1]), needed, machine)

    total = rows * args.steps * args.tokens_per_step
    report_rates(
        result_name("engine_tree", args.model),
        f"{args.problems} problems, {args.beams} beams, {args.steps} steps of {args.tokens_per_step} tokens",
        args, ready, done, total, failed, sides, PROMISED_TREE_RATIOS.get(args.device),
        **explain_rates(least, total, done.rates(total), inside),
        sharing=sharing,
    )  # fmt: skip


if __name__ == "__main__":
    main()
