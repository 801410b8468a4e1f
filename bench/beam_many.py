"""Beam search over many problems at once, beside a lock-step loop that takes one problem after another.

Both sides search with the same engine, the same sampling and the same guide (the mean log-probability of a step, which
costs nothing). ponder's side is `solve_all` with `Beam`: every problem asks for its next step when its own last one is
rated, and the engine batches whatever waits. The loop is written out below: one problem, its beams as one batch, wait
for all of them, keep the best, again. A draw depends on its prefix only, so both grow the same trees; how many of the
answers are the same to the token is checked and kept.

    python bench/beam_many.py                   64 problems, 4 beams, 4 steps of 16 tokens, a small net on a CPU
    python bench/beam_many.py --device cuda     64 problems, 16 beams, 20 steps of 32 tokens, smollm2

The net on a CPU is small and has random weights: a larger one leaves a CPU nothing that batching could save.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import RESULTS, make_parser, report
from ponder.pipelines.solve import solve_all
from ponder.protocols import Policy
from ponder.reason.operators.cut import Cut
from ponder.reason.strategies import BeamSearch
from ponder.types import Completion, Ids, Problem, Sampling, Score, Trace, user_messages
from sampling_harness import fill_default_sizes

PROMISED_RATIO = 5.0
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz?+= "
AnswerCounts = Counter[bytes]  # the tokens of each, prompt and all
SMALL_MODEL = {"width": 64, "layers": 2, "heads": 4, "context": 512}


@dataclass(frozen=True)
class MeanLogprob:
    """The mean log-probability of a step's tokens."""

    @property
    def name(self) -> str:
        return "sure"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(mean_logprob(trace.steps[i].logprobs)) for i in steps]


def mean_logprob(logprobs: Any) -> float:
    return float(np.mean(logprobs, dtype=np.float64))


@dataclass(frozen=True)
class Shape:
    beams: int
    keep: int
    steps: int
    tokens: int

    @property
    def sampling(self) -> Sampling:
        return Sampling(max_tokens=self.steps * self.tokens, min_tokens=self.steps * self.tokens)


def beam_concurrently(policy: Policy, problems: Sequence[Problem], shape: Shape) -> list[AnswerCounts]:
    beam = BeamSearch(shape.beams, shape.beams // shape.keep, sampling=shape.sampling, cut=Cut(tokens=shape.tokens))
    item: list[AnswerCounts] = []

    async def work() -> None:
        for trace in await solve_all(problems, beam, policy, guide=MeanLogprob()):
            item.append(Counter(trace.token_ids(i).tobytes() for i in trace.answers()))

    asyncio.run(work())
    return item


def beam_one_by_one(policy: Policy, problems: Sequence[Problem], shape: Shape) -> list[AnswerCounts]:
    """The same search, one problem after another."""
    how = Sampling(max_tokens=shape.tokens, min_tokens=shape.tokens)

    async def one(problem: Problem) -> AnswerCounts:
        asks: list[tuple[Ids, int]] = [(policy.encode(problem.messages), shape.beams)]
        for step in range(shape.steps):
            drawn = await asyncio.gather(*(policy.generate(prefix, how, n) for prefix, n in asks))
            grown: list[tuple[Ids, Completion]] = [
                (np.append(prefix, c.token_ids), c)
                for (prefix, _), group in zip(asks, drawn, strict=True)
                for c in group
            ]
            if step == shape.steps - 1:
                return Counter(path.tobytes() for path, _ in grown)
            best = sorted(range(len(grown)), key=lambda i: -mean_logprob(grown[i][1].logprobs))[: shape.keep]
            asks = [(grown[i][0], shape.beams // shape.keep) for i in sorted(best)]
        return Counter()

    async def work() -> list[AnswerCounts]:
        return [await one(p) for p in problems]

    return asyncio.run(work())


def load_model(model: str, device: str, seed: int = 0) -> Any:
    from ponder.models.load import load_inference_policy
    from ponder.models.scratch_model import ScratchModel

    fresh = ScratchModel(ALPHABET, **SMALL_MODEL, seed=seed)
    if model == "small":
        return load_inference_policy(fresh, template="{{- messages[-1].content }}", device=device)
    return load_inference_policy(model, device=device)


def main() -> None:
    own = make_parser(__doc__)
    own.add_argument("--model", help="default: small (random weights), on a GPU smollm2")
    own.add_argument("--problems", type=int, default=64)
    own.add_argument("--beams", type=int, help="default: 4, on a GPU 16")
    own.add_argument("--keep", type=int, help="beams kept of them; default: 2, on a GPU 4")
    own.add_argument("--steps", type=int, help="default: 4, on a GPU 20")
    own.add_argument("--tokens-per-step", type=int, help="of a step; default: 16, on a GPU 32")
    own.add_argument("--repeats", type=int, default=3, help="measurements of each side, after one to warm up")
    own.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    own.add_argument("--results", type=Path, default=RESULTS, help="folder that the result is written to")
    args = own.parse_args()
    fill_default_sizes(
        args,
        cpu={"beams": 4, "keep": 2, "steps": 4, "tokens_per_step": 16},
        cuda={"beams": 16, "keep": 4, "steps": 20, "tokens_per_step": 32},
    )
    model = args.model or ("smollm2" if args.device == "cuda" else "small")
    shape = Shape(args.beams, args.keep, args.steps, args.tokens_per_step)
    policy = load_model(model, args.device)
    sides = {"ponder": beam_concurrently, "lock-step, one problem at a time": beam_one_by_one}
    times: dict[str, list[float]] = {who: [] for who in sides}
    cpu_times: dict[str, list[float]] = {who: [] for who in sides}
    load, same = [], []
    for turn in range(1 + args.repeats):
        problems = [
            Problem(f"{turn}/{i}", user_messages(f"{turn}{i:03}+{i * 7919 % 1000}=?")) for i in range(args.problems)
        ]
        result = {}
        for who, side in sides.items():
            policy.stream(turn)  # the same draws for both, and nothing in the cache
            load.append(round(os.getloadavg()[0], 2))
            began, worked = time.perf_counter(), time.process_time()
            result[who] = side(policy, problems, shape)
            took = time.perf_counter() - began
            print(f"turn {turn}, {who}: {took:.2f} s", flush=True)
            if turn:
                times[who].append(took)
                cpu_times[who].append(time.process_time() - worked)
        ours, theirs = result.values()
        pairs = list(zip(ours, theirs, strict=True))
        assert all(a.total() == b.total() == args.beams for a, b in pairs), "unequal work"
        same.append(sum((a & b).total() for a, b in pairs) / (args.beams * args.problems))
    rate = {who: args.problems / statistics.median(t) for who, t in times.items()}
    worked_ours, worked_theirs = (statistics.median(t) for t in cpu_times.values())
    kind = "a small net of random weights" if model == "small" else model
    report(
        "beam_many",
        f"{kind}: {args.problems} problems, {args.beams} beams of which {args.keep} are kept, {args.steps} steps of "
        f"{args.tokens_per_step} tokens",
        rate["ponder"],
        {who: r for who, r in rate.items() if who != "ponder"},
        promised=PROMISED_RATIO,
        unit="problems/s",
        device=args.device,
        results=args.results,
        details={
            "seconds": times,
            "cpu_seconds": cpu_times,
            "ratio_by_cpu_seconds": worked_theirs / worked_ours,  # which a shared machine changes less
            "load": load,
            "same_answers": same,
            "net": SMALL_MODEL if model == "small" else model,
            "note": args.note,
        },
    )


if __name__ == "__main__":
    main()
