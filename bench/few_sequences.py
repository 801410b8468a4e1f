"""Decoding one sequence, or a few, on a CPU: compiled steps beside what many sequences take (packed weights), beside
ponder without a compiler, and beside llama.cpp.

Every side samples from the same weights at temperature 1, with log-probabilities. Sides take turns, each turn with new
prompts; a step's time is that of a longer answer less that of a short one, so that reading the prompt is not in it.
Beside the time on the clock the processor time of the process is kept: where other programs run it says more, while
with several threads it also counts those that wait for each other.

    python bench/few_sequences.py                        SmolLM2, float32, 1 2 4 8 16 sequences, one thread
    python bench/few_sequences.py --threads 2 --rows 1

Peer: pip install xllamacpp; without it ponder's two sides are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import report
from ponder.types import ids
from sampling_backends import BACKENDS, Backend, BackendSetting, Ponder, PromptRequest, check_completions
from sampling_harness import backend_packages, prepare_model, result_name, sampling_parser

PROMPT_TOKENS = 32
FIRST_TOKENS = 2  # of the short answers
# ponder's own: PONDER_CPU_KERNELS, and for up to how many sequences steps are compiled, for which ponder has a limit
OWN = {"ponder": ("1", 1 << 30), "ponder, packed weights": ("1", 0), "ponder, no compiler": ("0", 0)}
LLAMA = {"float32": "llama.cpp, F32", "bfloat16": "llama.cpp, BF16"}


@contextmanager
def kernels(value: str) -> Iterator[None]:
    before = os.environ.get("PONDER_CPU_KERNELS")
    os.environ["PONDER_CPU_KERNELS"] = value
    try:
        yield
    finally:
        os.environ.pop("PONDER_CPU_KERNELS")
        if before is not None:
            os.environ["PONDER_CPU_KERNELS"] = before


def open_side(name: str, setting: BackendSetting, vocab: int) -> Backend:
    value, few = OWN.get(name, ("1", 0))
    with kernels(value):
        side = Ponder(setting) if name in OWN else BACKENDS[name](setting)
        side.generate_all(prompts(vocab, 0, 0, 1), 1)  # the engine chooses its runner at its first pass
    if isinstance(side, Ponder):
        runner: Any = side.policy.engine._runner
        print(f"{name}: {type(runner).__name__}", flush=True)
        if hasattr(runner, "few_sequences"):
            runner.few_sequences = few
    return side


def prompts(vocab: int, turn: int, first: int, count: int) -> list[PromptRequest]:
    draw = np.random.default_rng([turn, first])
    return [(ids(draw.integers(3, vocab, PROMPT_TOKENS)), 1) for _ in range(count)]


def step_seconds(side: Backend, vocab: int, turn: int, rows: int, tokens: int) -> dict[str, float]:
    """Of one step of all rows: on the clock, and of the processor."""
    clock, processor = [], []
    for part, length in enumerate((FIRST_TOKENS, FIRST_TOKENS + tokens)):
        asks = prompts(vocab, turn, 1000 * rows + part, rows)
        began, worked = time.perf_counter(), time.process_time()
        groups = side.generate_all(asks, length)
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - worked)
        check_completions(groups, asks, length)
    return {"seconds": (clock[1] - clock[0]) / tokens, "processor_seconds": (processor[1] - processor[0]) / tokens}


def measure(
    sides: dict[str, Backend], vocab: int, args: argparse.Namespace
) -> Iterator[tuple[int, dict[str, dict[str, list[float]]]]]:
    for rows in args.rows:
        found: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
        for turn in range(1 + args.repeats):
            for name, side in sides.items():
                with kernels(OWN.get(name, ("1", 0))[0]):  # sampling asks for compiled passes at every step
                    taken = step_seconds(side, vocab, turn, rows, args.tokens)
                for key, value in taken.items() if turn else ():
                    found[name].setdefault(key, []).append(value)
        yield rows, found


def medians(found: dict[str, dict[str, list[float]]], key: str) -> dict[str, float]:
    return {name: statistics.median(values[key]) for name, values in found.items()}


def main() -> None:
    own = sampling_parser(__doc__)
    own.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="sequences at a time")
    own.add_argument("--tokens", type=int, default=48, help="steps that are timed")
    own.add_argument("--threads", type=int, default=1)
    own.add_argument("--brief", action="store_true", help="without ponder's other two sides")
    args = own.parse_args()
    if args.device != "cpu":
        raise SystemExit("the compiled steps are for a CPU")
    args.dtype = args.dtype or "float32"
    args.backends = args.backends or ["ponder", LLAMA[args.dtype]]

    with prepare_model(args, max(args.rows), FIRST_TOKENS + args.tokens) as ready:
        import torch

        torch.set_num_threads(args.threads)
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        setting = replace(ready.setting, threads=args.threads, max_model_len=PROMPT_TOKENS + args.tokens + 16)
        vocab, sides = ready.config.vocab, dict[str, Backend]()
        peers = [name for name in args.backends if name.startswith("llama.cpp") and name.split(", ")[1] in setting.gguf]
        own_sides = [name for name in OWN if name == "ponder" or not args.brief]
        details: dict[str, Any] = {}
        try:
            for name in (*own_sides, *peers):
                sides[name] = open_side(name, setting, vocab)
                torch.set_num_threads(args.threads)  # loading a model chooses their number
            for rows, found in measure(sides, vocab, args):
                details[str(rows)] = found
                clock, processor = medians(found, "seconds"), medians(found, "processor_seconds")
                for name in found:
                    ms = f"{1e3 * clock[name]:.1f} ms a step, {1e3 * processor[name]:.1f} of the processor"
                    print(f"{rows} sequences, {name}: {ms}", flush=True)
        finally:
            for side in sides.values():
                side.close()
    first = args.rows[0]
    rates = {name: first / seconds for name, seconds in medians(details[str(first)], "processor_seconds").items()}
    threads = "" if args.threads == 1 else f"_{args.threads}_threads"
    report(
        result_name("few_sequences", args.model) + threads + ("" if args.dtype == "float32" else f"_{args.dtype}"),
        f"{Path(args.model).name}, {args.dtype}: steps of {first} sequence(s) after {PROMPT_TOKENS} tokens, with "
        f"log-probabilities, {args.threads} thread(s)",
        rates.pop("ponder"),
        rates,
        unit="tokens per second of the processor",
        packages=backend_packages(peers),
        results=args.results,
        details={
            "rows": details,
            "processor_ms": {rows: _ms(found, "processor_seconds") for rows, found in details.items()},
            "clock_ms": {rows: _ms(found, "seconds") for rows, found in details.items()},
            "tokens": args.tokens,
            "threads": args.threads,
            "load": round(os.getloadavg()[0], 2),
            "notes": {name: sides[name].note for name in peers},
            "note": args.note,
        },
    )


def _ms(found: dict[str, dict[str, list[float]]], key: str) -> dict[str, float]:
    return {name: round(1e3 * seconds, 2) for name, seconds in medians(found, key).items()}


if __name__ == "__main__":
    main()
