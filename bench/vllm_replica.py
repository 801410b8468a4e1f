"""vLLM as a replica of a learner: are its samples those of the published weights, and how long do new weights take?

A learner's policy starts one sampler process with vLLM's server behind it. Its answers are compared token by token with
the learner's own log-probabilities: as started, after weights were changed and published, and for answers that were
interrupted by new weights. Then the process is killed in the middle of answers. The peer is ponder's own engine as the
replica, with the same requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import commit, hardware, make_parser, versions
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.ledger import read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.types import Completion, Sampling

LEDGER_COUNTS = ("asked", "answered", "open", "doubled", "deaths")
QUESTIONS = [f"What is {a} + {b}?" for a in range(11, 19) for b in range(21, 25)]


def change_weights(net: torch.nn.Module, seed: int) -> None:
    """A step in a random direction, small enough that answers stay text."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            noise = torch.randn(p.shape, generator=draw).to(p.device, p.dtype)
            p.add_(noise, alpha=0.02 * float(p.float().std()))


async def logprob_gap(policy: PonderPolicy, prompts: list[Any], groups: list[list[Completion]]) -> dict[str, float]:
    """How far the replica's log-probabilities are from the learner's, over all tokens."""
    gaps = []
    for prompt, group in zip(prompts, groups, strict=True):
        for c in group:
            gaps.append(np.abs(await policy.token_logprobs(prompt, c.token_ids) - c.logprobs))
    every = np.concatenate(gaps)
    return {"mean": float(every.mean()), "median": float(np.median(every)), "tokens": len(every)}


async def measure(engine: Any, args: Any, row: dict[str, Any], keep: Callable[[], None]) -> None:
    """Fills the row, and calls `keep` after each part."""
    policy = load_policy(args.model, device=args.device, dtype=args.dtype)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        began = time.perf_counter()
        try:
            async with ReplicaPolicy(policy, args.replicas, folder, engine=engine) as replicas:
                row["start_seconds"] = time.perf_counter() - began
                await use(policy, replicas, args, row, keep)
        except Exception as error:
            log = folder / "replica-0.log"
            said = log.read_text(errors="replace")[-6000:] if log.exists() else ""
            row |= {"error": f"{type(error).__name__}: {error}", "log": said}
            return


async def use(
    policy: PonderPolicy, replicas: ReplicaPolicy, args: Any, row: dict[str, Any], keep: Callable[[], None]
) -> None:
    prompts = [policy.encode([{"role": "user", "content": q}]) for q in QUESTIONS[: args.questions]]
    sampling = Sampling(max_tokens=args.tokens)
    keep()

    async def ask(n: int = 8) -> list[list[Completion]]:
        return list(await asyncio.gather(*(replicas.generate(p, sampling, n) for p in prompts)))

    await ask()  # graphs and caches
    began = time.perf_counter()
    groups = await ask()
    tokens = sum(len(c.token_ids) for g in groups for c in g)
    row["tokens_per_second"] = tokens / (time.perf_counter() - began)
    row["gap_at_start"] = await logprob_gap(policy, prompts, groups)
    keep()
    publishes = []
    for version in range(1, 5):
        change_weights(policy.net, version)
        policy.version = version
        began = time.perf_counter()
        await replicas.publish(version)
        publishes.append(time.perf_counter() - began)
    row |= {"publish_seconds": publishes, "publish_median_seconds": statistics.median(publishes)}
    keep()
    after = await ask()
    row["gap_after_publish"] = await logprob_gap(policy, prompts, after)
    row["gap_of_old_samples_to_new_weights"] = await logprob_gap(policy, prompts, groups)  # as if nothing had arrived
    assert {c.version for g in after for c in g} == {4}
    keep()
    banned = tuple((token, -100.0) for token in replicas.eos)
    long = Sampling(max_tokens=args.long_tokens, logit_bias=banned)
    tasks = [asyncio.create_task(replicas.generate(p, long, 2)) for p in prompts]
    await asyncio.sleep(args.long_seconds)
    began = time.perf_counter()
    await replicas.publish(5)
    row["publish_beside_answers_seconds"] = time.perf_counter() - began
    answers = [c for g in await asyncio.gather(*tasks) for c in g]
    mixed = [c for c in answers if len(set(c.notes.get("version", ()))) > 1]
    assert all(list(c.notes["version"]) == sorted(c.notes["version"]) for c in mixed)
    row["interrupted"] = {"answers": len(answers), "of_two_versions": len(mixed),
                          "first_versions": sorted({c.version for c in answers})}  # fmt: skip
    keep()
    tasks = [asyncio.create_task(replicas.generate(p, sampling, 2)) for p in prompts]
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    os.kill(replicas.replicas[0].pid, signal.SIGKILL)
    row["answers_after_kill"] = sum(len(g) for g in await asyncio.gather(*tasks))
    row["seconds_back_after_kill"] = time.perf_counter() - began  # until all answers were there
    counts = read_ledger(replicas.folder / LEDGER_FILE)
    assert counts is not None
    row["ledger"] = {name: getattr(counts, name) for name in LEDGER_COUNTS}
    keep()
    while not all(r.ready for r in replicas.replicas) and time.perf_counter() - began < args.restart_seconds:
        await asyncio.sleep(0.1)
    if all(r.ready for r in replicas.replicas):
        row["restart_seconds"] = time.perf_counter() - began


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--dtype", default="bfloat16")
    flags.add_argument("--engines", nargs="+", default=["vllm", "ponder"])
    flags.add_argument("--replicas", type=int, default=1)
    flags.add_argument("--restart-seconds", type=float, default=300.0, help="to wait for a killed replica at most")
    flags.add_argument("--questions", type=int, default=32)
    flags.add_argument("--tokens", type=int, default=64)
    flags.add_argument("--long-tokens", type=int, default=1500)
    flags.add_argument("--long-seconds", type=float, default=1.0, help="until new weights interrupt long answers")
    flags.add_argument("--out", type=Path)
    args = flags.parse_args()
    result: dict[str, Any] = {"hardware": hardware(args.device), "versions": versions(["vllm"]), "commit": commit()}
    result["settings"] = {k: v for k, v in vars(args).items() if k != "out"}

    def keep() -> None:
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1) + "\n")

    for engine in args.engines:
        result[engine] = {}
        asyncio.run(measure(engine, args, result[engine], keep))
        keep()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
