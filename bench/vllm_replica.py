"""vLLM as a replica of a learner: are its samples those of the published weights, and how long do new weights take?

A learner's policy starts sampler processes with vLLM's server behind each. Their answers are compared token by token
with the learner's own log-probabilities: as started, after weights were changed and published, and for answers that
were interrupted by new weights, whose tokens are compared with the weights of their version. Then a process is killed
in the middle of answers, and what it answers once it is back is compared, too. The peer is ponder's own engine as the
replica, with the same requests. `--jobs` runs an evaluation and a collection through such replicas instead, and the
evaluation once more without them.
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
from ponder.measure.statistics.intervals import bootstrap_mean
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.replicas.ledger import read_ledger
from ponder.models.replicas.replica_policy import LEDGER_FILE, ReplicaPolicy
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.training.open_sampler import REPLICAS_FOLDER
from ponder.reason.strategies import Samples
from ponder.runs import read_traces
from ponder.tasks.generated.addition import Addition
from ponder.types import Completion, Sampling

LEDGER_COUNTS = ("asked", "answered", "sent_again", "open", "doubled", "deaths")
QUESTIONS = [f"What is {a} + {b}?" for a in range(11, 19) for b in range(21, 25)]
STORIES = [f"Write a long story about a {a} and a {b}." for a in ("fox", "king", "ship", "girl") for b in
           ("river", "clock", "storm", "garden", "teacher", "wolf", "bridge", "letter")]  # fmt: skip


def change_weights(net: torch.nn.Module, seed: int) -> None:
    """A step in a random direction, small enough that answers stay text."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            noise = torch.randn(p.shape, generator=draw).to(p.device, p.dtype)
            p.add_(noise, alpha=0.02 * float(p.float().std()))


async def logprob_gap(policy: PonderPolicy, prompts: list[Any], groups: list[list[Completion]]) -> dict[str, float]:
    """How far the replica's log-probabilities are from the learner's, over all tokens."""
    return summary(np.concatenate(await token_gaps(policy, pairs(prompts, groups))))


def pairs(prompts: list[Any], groups: list[list[Completion]]) -> list[tuple[Any, Completion]]:
    return [(prompt, c) for prompt, group in zip(prompts, groups, strict=True) for c in group]


async def token_gaps(policy: PonderPolicy, answers: list[tuple[Any, Completion]]) -> list[np.ndarray]:
    """Of each token of each answer."""
    own = await asyncio.gather(*(policy.token_logprobs(prompt, c.token_ids) for prompt, c in answers))
    return [np.abs(read - c.logprobs) for read, (_, c) in zip(own, answers, strict=True)]


def summary(gaps: np.ndarray) -> dict[str, float]:
    return {"mean": float(gaps.mean()), "median": float(np.median(gaps)), "tokens": len(gaps)}


async def measure(engine: Any, args: Any, row: dict[str, Any], keep: Callable[[], None]) -> None:
    """Fills the row, and calls `keep` after each part."""
    policy = load_policy(args.model, device=args.device, dtype=args.dtype)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        began = time.perf_counter()
        try:
            async with ReplicaPolicy(policy, args.replicas, folder, engine=engine, capacity=args.capacity) as replicas:
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
    await interrupt(policy, replicas, args, row)
    keep()
    await kill(policy, replicas, args, row, keep)


async def interrupt(policy: PonderPolicy, replicas: ReplicaPolicy, args: Any, row: dict[str, Any]) -> None:
    """New weights in the middle of long answers: each token is compared with the weights of its version."""
    prompts = [policy.encode([{"role": "user", "content": q}]) for q in STORIES[: args.questions]]
    old = [p.detach().clone() for p in policy.net.parameters()]
    change_weights(policy.net, 5)
    policy.version = 5
    tasks = [asyncio.create_task(replicas.generate(p, Sampling(max_tokens=args.long_tokens), 2)) for p in prompts]
    await asyncio.sleep(args.long_seconds)
    began = time.perf_counter()
    await replicas.publish(5)
    row["publish_beside_answers_seconds"] = time.perf_counter() - began
    answers = pairs(prompts, await asyncio.gather(*tasks))
    mixed = [(p, c) for p, c in answers if len(set(c.notes.get("version", ()))) > 1]
    assert all(list(c.notes["version"]) == sorted(c.notes["version"]) for _, c in mixed)
    found: dict[str, Any] = {"answers": len(answers), "of_two_versions": len(mixed),
                             "first_versions": sorted({c.version for _, c in answers})}  # fmt: skip
    if mixed:
        to_new = np.concatenate(await token_gaps(policy, mixed))
        new = [p.detach().clone() for p in policy.net.parameters()]
        copy_weights(policy.net, old)
        to_old = np.concatenate(await token_gaps(policy, mixed))
        copy_weights(policy.net, new)
        of_new = np.concatenate([np.asarray(c.notes["version"]) for _, c in mixed]) == 5
        found |= {
            "gap_of_old_tokens_to_old_weights": summary(to_old[~of_new]),
            "gap_of_new_tokens_to_new_weights": summary(to_new[of_new]),
            "gap_of_new_tokens_to_old_weights": summary(to_old[of_new]),  # as if the new ones had not arrived
        }
    row["interrupted"] = found


def copy_weights(net: torch.nn.Module, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for p, w in zip(net.parameters(), weights, strict=True):
            p.copy_(w)


async def kill(
    policy: PonderPolicy, replicas: ReplicaPolicy, args: Any, row: dict[str, Any], keep: Callable[[], None]
) -> None:
    """A process is killed while it answers; its answers come from the others, or from itself once it is back."""
    prompts = [policy.encode([{"role": "user", "content": q}]) for q in QUESTIONS[: args.questions]]
    ledger = replicas.folder / LEDGER_FILE
    tasks = [asyncio.create_task(replicas.generate(p, Sampling(max_tokens=args.tokens), 2)) for p in prompts]
    await asyncio.sleep(args.kill_seconds)
    dies = max(replicas.replicas, key=lambda r: r.sequences)
    row["killed_with_sequences"] = dies.sequences
    began = time.perf_counter()
    os.kill(dies.pid, signal.SIGKILL)
    row["answers_after_kill"] = sum(len(g) for g in await asyncio.gather(*tasks))
    row["seconds_back_after_kill"] = time.perf_counter() - began  # until all answers were there
    row["ledger"] = ledger_counts(ledger)
    keep()
    while not all(r.ready for r in replicas.replicas) and time.perf_counter() - began < args.restart_seconds:
        await asyncio.sleep(0.1)
    if not all(r.ready for r in replicas.replicas):
        return
    row["restart_seconds"] = time.perf_counter() - began
    keep()
    before = len(ledger.read_text().splitlines())
    groups = await asyncio.gather(*(replicas.generate(p, Sampling(max_tokens=args.tokens), 2) for p in prompts))
    events = [json.loads(line) for line in ledger.read_text().splitlines()[before:]]
    back = [e["replica"] for e in events if e["event"] == "answered"]
    row["after_restart"] = {
        "requests": len(back), "answered_by_restarted": back.count(dies.index),
        "versions": sorted({c.version for g in groups for c in g}),
        "gap": await logprob_gap(policy, prompts, list(groups)), "ledger": ledger_counts(ledger),
    }  # fmt: skip


def ledger_counts(path: Path) -> dict[str, int] | None:
    counts = read_ledger(path)
    return None if counts is None else {name: getattr(counts, name) for name in LEDGER_COUNTS}


def run_jobs(engine: Any, args: Any, row: dict[str, Any], keep: Callable[[], None]) -> None:
    """An evaluation and a collection through replicas, and the evaluation in this process alone."""
    task = Addition()
    settings: dict[str, Any] = {
        "model": args.model, "limit": args.problems, "device": args.device, "dtype": args.dtype,
        "strategy": Samples(4, Sampling(max_tokens=args.tokens)),
    }  # fmt: skip
    spread = {"replicas": args.replicas, "replica_engine": engine}
    jobs: dict[str, Any] = {
        "eval": Evaluate(task, **settings, **spread),
        "collect": Collect(task, **settings, **spread),
        "eval_without_replicas": Evaluate(task, **settings),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, job in jobs.items():
            run, began = Path(scratch) / name, time.perf_counter()
            try:
                job(run)
            except Exception as error:
                row[name] = {"error": f"{type(error).__name__}: {error}"[-3000:]}
            else:
                traces = [t for _, t in read_traces(run)]
                scores = [[(t.score(i, task.verifier.name) or 0) >= 1 for i in t.answers()] for t in traces]
                interval = bootstrap_mean([float(np.mean(s)) for s in scores])
                row[name] = {
                    "traces": len(traces), "answers": sum(map(len, scores)),
                    "accuracy": [interval.mean, interval.low, interval.high],
                    "ledger": ledger_counts(run / REPLICAS_FOLDER / LEDGER_FILE),
                    "seconds": time.perf_counter() - began,
                }  # fmt: skip
            keep()


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--model", default="smollm2")
    flags.add_argument("--dtype", default="bfloat16")
    flags.add_argument("--engines", nargs="+", default=["vllm", "ponder"])
    flags.add_argument("--replicas", type=int, default=1)
    flags.add_argument("--capacity", type=int, default=256, help="sequences of a replica, before others get some")
    flags.add_argument("--restart-seconds", type=float, default=300.0, help="to wait for a killed replica at most")
    flags.add_argument("--jobs", action="store_true", help="an evaluation and a collection instead")
    flags.add_argument("--problems", type=int, default=64, help="of the jobs")
    flags.add_argument("--questions", type=int, default=32)
    flags.add_argument("--tokens", type=int, default=64)
    flags.add_argument("--long-tokens", type=int, default=1500)
    flags.add_argument("--long-seconds", type=float, default=1.0, help="until new weights interrupt long answers")
    flags.add_argument("--kill-seconds", type=float, default=0.3, help="until a process that answers is killed")
    flags.add_argument("--out", type=Path)
    args = flags.parse_args()
    result: dict[str, Any] = {"hardware": hardware(args.device), "versions": versions(["vllm"]), "commit": commit()}
    result["settings"] = {k: v for k, v in vars(args).items() if k != "out"}

    def keep() -> None:
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1) + "\n")

    for engine in args.engines:
        result[engine] = {}
        if args.jobs:
            run_jobs(engine, args, result[engine], keep)
        else:
            asyncio.run(measure(engine, args, result[engine], keep))
        keep()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
