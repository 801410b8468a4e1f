"""Traffic: clients that each ask with a new, long prompt as soon as they have their answer.

So prompts come all the time while others write. Prompts are random tokens of random lengths, the same for all sides;
nothing in them is shared. Sides take turns. ponder is also measured with passes that always do both, fill prompts and
write, or never do: to see whether it does right where it chooses. Where ponder's time goes is measured in one more run.

    python bench/engine_arrivals.py                   8 clients x 3 prompts of 32 to 256 tokens, 16 new ones, on a CPU
    python bench/engine_arrivals.py --device cuda     64 x 8 prompts of 128 to 2,048 tokens, 64 new ones
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np

from ponder.engine.scheduler import Scheduler
from ponder.types import Ids, ids
from roofline import time_engine
from sampling_backends import BACKENDS, Backend, Ponder, Search, check_completions
from sampling_harness import (
    fill_default_sizes,
    measure_alternating,
    open_backends,
    prepare_model,
    report_rates,
    result_name,
    sampling_parser,
)

BOTH, APART = "ponder, both at once", "ponder, prompts apart"


class PonderMixed(Ponder):
    note = "the same engine, in which every pass that fills prompts also writes"
    both = True

    def run_searches(self, searches: Sequence[Search], tokens: int) -> None:
        real = Scheduler.plan_step
        with patch.object(
            Scheduler, "plan_step", lambda own, choose, mixed_batch: real(own, choose, lambda chunks: self.both)
        ):
            super().run_searches(searches, tokens)


class PonderSeparate(PonderMixed):
    note = "the same engine, in which no pass does both"
    both = False


def client(prompts: Sequence[Ids], tokens: int, text: list[float]) -> Search:
    for prompt in prompts:
        asks = [(prompt, 1)]
        answers = yield asks
        text.append(check_completions(answers, asks, tokens))


def main() -> None:
    BACKENDS.update({BOTH: PonderMixed, APART: PonderSeparate})
    own = sampling_parser(__doc__)
    own.add_argument("--clients", type=int, help="default: 8, on a GPU 64")
    own.add_argument("--rounds", type=int, help="prompts of each; default: 3, on a GPU 8")
    own.add_argument("--min-prompt-tokens", type=int, help="tokens of a prompt; default: 32, on a GPU 128")
    own.add_argument("--max-prompt-tokens", type=int, help="default: 256, on a GPU 2048")
    own.add_argument("--tokens", type=int, help="of each answer; default: 16, on a GPU 64")
    args = own.parse_args()
    fill_default_sizes(
        args,
        cpu={"clients": 8, "rounds": 3, "min_prompt_tokens": 32, "max_prompt_tokens": 256, "tokens": 16},
        cuda={"clients": 64, "rounds": 8, "min_prompt_tokens": 128, "max_prompt_tokens": 2048, "tokens": 64},
    )
    args.backends = args.backends or (["ponder", BOTH, "vLLM"] if args.device == "cuda" else ["ponder", APART])

    with prepare_model(args, args.clients, args.max_prompt_tokens + args.tokens) as ready:

        def work(side: Backend, turn: int) -> float:
            text: list[float] = []
            draw = np.random.default_rng(turn)
            sizes = draw.integers(
                args.min_prompt_tokens, args.max_prompt_tokens, (args.clients, args.rounds), endpoint=True
            )
            asked = [[ids(draw.integers(3, ready.config.vocab, size)) for size in mine] for mine in sizes]
            side.run_searches([client(mine, args.tokens, text) for mine in asked], args.tokens)
            assert len(text) == args.clients * args.rounds, "a client was forgotten"
            return float(np.mean(text))

        with open_backends(ready.sides, ready.setting) as (sides, failed):
            done = measure_alternating(sides, failed, work, args.repeats, args.device)
            with time_engine(args.device) as inside:
                work(sides["ponder"], 1 + args.repeats)

    report_rates(
        result_name("engine_arrivals", args.model),
        f"{args.clients} clients x {args.rounds} prompts of {args.min_prompt_tokens} to {args.max_prompt_tokens} "
        f"tokens, {args.tokens} new tokens each",
        args, ready, done, args.clients * args.rounds * args.tokens, failed, sides, inside_ponder=dict(inside),
    )  # fmt: skip


if __name__ == "__main__":
    main()
