"""Sampling while learning against sampling and learning in turn: what the overlap gains, and what old samples cost.

`--part overlap` has a sampler and a learner that only wait, equally long, so that nothing but the overlap is measured:
the best step is as long as one of them. `--part accuracy` trains a tiny model from scratch on the CPU with staleness 0,
1 and 4, several seeds each, and compares rewards seed by seed, at the learning rate that `--lr` gives. `--part demo`
does the same with `ponder run addition`, with held-out accuracy and time, and refuses to compare where staleness 0 has
learned nothing; `--device cuda` runs it on a GPU, `--replicas 1` in a sampler process of its own. `--staleness 0 1
--replicas 0 1` compares one process, in turn, with a learner and a sampler as two processes. `--part processes` does
that with SmolLM2 (or `--model`) for the time of a step alone, with a reward that lets every step learn.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from digits_task import Digits
from harness import commit, hardware, make_parser, report, versions
from ponder.cli.recipe_files import find_recipe, load_recipe
from ponder.measure.statistics.intervals import bootstrap_mean, paired_difference
from ponder.models.load import load_policy
from ponder.models.replicas.replica_policy import ReplicaPolicy
from ponder.models.sampler_copy import SamplerCopy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.training.sampling_ahead import SamplingAhead
from ponder.pipelines.training.session import TrainingState
from ponder.protocols import NoProgress, PolicyWrapper
from ponder.reason.strategies import Chain, Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Completion, Ids, Problem, Sampling, Score, Trace, user_messages

ALPHABET = "0123456789+-*/=()ab ?:"
MIN_DEMO_ACCURACY = 0.6  # of staleness 0 after training, 0.41 before; below it, equal accuracies say nothing
TEMPLATE = "{{ messages[-1].content }}"


def digits_job(seed: int, steps: int, lr: float = 1e-3, **more: Any) -> RL:
    return RL(
        Digits(), ScratchModel(ALPHABET, width=64, layers=2, heads=4, context=16, seed=seed), TEMPLATE,
        Samples(8, Sampling(max_tokens=1)), GRPO(kl=None), AdamW(lr=lr), steps=steps, problems_per_step=10,
        preflight=False, save_every=steps, max_steps_without_signal=0, seed=seed, device="cpu", dtype="float32", **more,
    )  # fmt: skip


class WaitingPolicy(PolicyWrapper):
    """Samples with a model, and takes at least so long for a batch."""

    def __init__(self, policy: Any, seconds: float) -> None:
        self.policy, self.seconds = policy, seconds

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        completions, _ = await asyncio.gather(self.policy.generate(prefix, sampling, n), asyncio.sleep(self.seconds))
        return list(completions)


async def simulated_step_seconds(seconds: float, steps: int, staleness: int) -> float:
    """Mean time of a step after the first; a sampler and a learner that take `seconds` each."""
    job = digits_job(0, steps, staleness=staleness, batches_ahead=None if staleness else 0)
    policy = WaitingPolicy(load_policy(job.model, template=TEMPLATE, device="cpu", dtype="float32"), seconds)
    state = TrainingState()
    async with SamplingAhead(job, policy, state) as ahead:
        began = 0.0
        for step in range(steps):
            await ahead.take(state)
            began = began or time.perf_counter()
            if staleness:
                await ahead.run_beside(lambda: time.sleep(seconds))
            else:
                time.sleep(seconds)
            state.step = step + 1
            policy.policy.version = state.step
            ahead.begin_batches(state)
    return (time.perf_counter() - began) / steps


def measure_overlap(seconds: float, steps: int) -> None:
    times = {s: asyncio.run(simulated_step_seconds(seconds, steps, s)) for s in (0, 1, 2, 4)}
    report(
        "sampling_ahead_overlap",
        f"a sampler and a learner that take {seconds:g} s each, {steps} steps, staleness 1 against 0",
        times[1],
        {"in turn": times[0]},
        promised=2 / 1.1,
        unit="s per step",
        better="lower",
        packages=["torch"],
        details={"seconds_by_staleness": times, "share_of_the_longer": {s: t / seconds for s, t in times.items()}},
    )


def measure_accuracy(seeds: int, steps: int, lr: float, staleness: Sequence[int], replicas: int) -> None:
    """Greedy accuracy at the end, and the mean reward of the last quarter of the steps, seed by seed."""
    ends: dict[int, list[float]] = {s: [] for s in staleness}
    greedy: dict[int, list[float]] = {s: [] for s in staleness}
    ages: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for s in staleness:
            for seed in range(seeds):
                run = Path(folder) / f"{s}-{seed}"
                digits_job(seed, steps, lr, staleness=s, replicas=replicas, eval_every=steps)(run)
                rows = read_metrics(run)
                ends[s].append(float(np.mean([r["reward"] for r in rows[-steps // 4 :]])))
                greedy[s].append(rows[-1]["eval/accuracy"])
                ages[s] = max([ages.get(s, 0.0), *(r.get("staleness/max", 0.0) for r in rows)])
    out = {}
    for s in staleness[1:]:
        gap = bootstrap_mean([a - b for a, b in zip(ends[s], ends[staleness[0]], strict=True)])
        out[s] = {"difference": gap.mean, "low": gap.low, "high": gap.high, "oldest": ages[s]}
    settings = {"hardware": hardware(), "versions": versions(), "commit": commit()}
    settings |= {"seeds": seeds, "steps": steps, "lr": lr, "replicas": replicas}
    results = {"reward": ends, "greedy_accuracy": greedy, "against_in_turn": out}
    print(json.dumps({"part": "accuracy", **settings, **results}))


def measure_demo(seeds: int, steps: int, staleness: Sequence[int], replicas: Sequence[int], device: str) -> None:
    """Held-out accuracy after `ponder run addition`, problem by problem, and the time of a step."""
    replicas_of = dict(zip(staleness, replicas, strict=True))
    recipe = load_recipe(find_recipe("addition"))
    right: dict[int, list[bool]] = {s: [] for s in staleness}
    seconds: dict[int, list[float]] = {s: [] for s in staleness}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            for s in staleness:
                run = Path(folder) / f"{s}-{seed}"
                settings = {"staleness": s, "replicas": replicas_of[s]}
                job: RL = replace(recipe(seed=seed, device=device, steps=steps), **settings)
                job(run)
                seconds[s] += [r["step_time"] for r in read_metrics(run)[steps // 8 :]]
                greedy = Chain(Sampling(temperature=0, max_tokens=10, stop=job.sampling.stop))
                check = Evaluate(job.task, str(run), job.template, greedy, limit=300, device=device, dtype="float32")
                check(Path(folder) / f"eval-{s}-{seed}")
                traces = [t for _, t in read_traces(Path(folder) / f"eval-{s}-{seed}")]
                right[s] += [(t.score(t.answers()[-1], job.task.verifier.name) or 0) >= 1 for t in traces]
    if np.mean(right[staleness[0]]) < MIN_DEMO_ACCURACY:
        raise SystemExit(
            f"staleness {staleness[0]} has {np.mean(right[staleness[0]]):.1%}: nothing was learned to compare"
        )
    out: dict[str, Any] = {}
    for s in staleness:
        pairs = paired_difference(right[s], right[staleness[0]])
        out[str(s)] = {"accuracy": float(np.mean(right[s])), "difference": [pairs.mean, pairs.low, pairs.high],
                       "replicas": replicas_of[s], "step_seconds": float(np.median(seconds[s]))}  # fmt: skip
    settings = {
        "hardware": hardware(device),
        "versions": versions(),
        "commit": commit(),
        "seeds": seeds,
        "steps": steps,
    }
    print(json.dumps({"part": "demo", **settings, "by_staleness": out, "all_step_seconds": seconds}))


@dataclass(frozen=True)
class EvenLength:
    """1 if the answer has an even number of characters: rewards of a group differ, whatever the model can do."""

    name = "even"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(len(trace.text(i)) % 2 == 0)) for i in steps]

    def extract_answer(self, text: str) -> str | None:
        return text or None


@dataclass(frozen=True)
class Sums:
    """Sums of three digits, explained."""

    name = "sums-explained"

    @cached_property
    def train(self) -> list[Problem]:
        draw = np.random.default_rng(0)
        pairs = draw.integers(100, 1000, (2048, 2)).tolist()
        return [
            Problem(f"sums/{i}", user_messages(f"What is {a} + {b}? Explain each step."), str(a + b))
            for i, (a, b) in enumerate(pairs)
        ]

    @property
    def test(self) -> list[Problem]:
        return self.train[:8]

    @property
    def verifier(self) -> EvenLength:
        return EvenLength()

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)


class StepClock(NoProgress):
    """When each step ended; after it, how long the learner waited to go on, and until the sampler had new weights."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.publish_seconds: list[float] = []
        self.loaded_seconds: list[float] = []

    def step(self, done: int, total: int, metrics: Any, traces: Any) -> None:
        self.ends.append(time.perf_counter())

    def timed(self, begin_publish: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(sampler: Any, version: int) -> Any:
            began = time.perf_counter()
            loading = await begin_publish(sampler, version)
            self.publish_seconds.append(time.perf_counter() - began)
            loading.add_done_callback(lambda _: self.loaded_seconds.append(time.perf_counter() - began))
            return loading

        return run


WAYS = {"in-turn": (0, 0), "two": (1, 1), "one": (1, 0)}  # staleness and replicas


def measure_processes(args: Any) -> None:
    """The time of a step: one process in turn, one process that samples ahead, and learner and sampler apart."""
    names = {"in-turn": "one process, in turn", "two": "two processes, staleness 1", "one": "one process, staleness 1"}
    ways = {names[way]: WAYS[way] for way in args.ways}
    out: dict[str, Any] = {}
    settings = {name: getattr(args, name) for name in ("model", "steps", "problems", "group_size", "max_tokens")}
    row = {"part": "processes", "hardware": hardware(args.device), "versions": versions(), "commit": commit()}
    row |= {"settings": settings, "ways": out}
    with tempfile.TemporaryDirectory() as folder:
        for name, (staleness, replicas) in ways.items():
            job = RL(
                Sums(), args.model, None, None, GRPO(kl=None), AdamW(lr=1e-6),
                group_size=args.group_size, sampling=Sampling(max_tokens=args.max_tokens), steps=args.steps,
                problems_per_step=args.problems, preflight=False, save_every=args.steps, max_steps_without_signal=0,
                seed=0, device=args.device, dtype="bfloat16" if args.device == "cuda" else "float32",
                staleness=staleness, replicas=replicas,
            )  # fmt: skip
            run, began, clock = Path(folder) / f"{staleness}-{replicas}", time.perf_counter(), StepClock()
            with (
                patch.object(SamplerCopy, "begin_publish", clock.timed(SamplerCopy.begin_publish)),
                patch.object(ReplicaPolicy, "begin_publish", clock.timed(ReplicaPolicy.begin_publish)),
            ):
                job(run, clock)
            rows, seconds = read_metrics(run), np.diff(clock.ends)  # publishing included
            times = {key: [r[key] for r in rows] for key in ("time/sample", "time/learn", "num_tokens")}
            out[name] = {
                "step_seconds": float(np.median(seconds[args.steps // 3 :])),  # kernels are compiled in the first
                "all_step_seconds": seconds.tolist(), "staleness": staleness, "replicas": replicas,
                "oldest": max(r.get("staleness/max", 0.0) for r in rows), "times": times,
                "publish_seconds": clock.publish_seconds, "loaded_seconds": clock.loaded_seconds,
                "whole_run_seconds": time.perf_counter() - began,
            }  # fmt: skip
            if args.out is not None:
                args.out.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--part", choices=["overlap", "accuracy", "demo", "processes"], default="overlap")
    flags.add_argument("--model", default="smollm2", help="of --part processes, as the next five")
    flags.add_argument(
        "--ways", nargs="+", choices=sorted(WAYS), default=list(WAYS), help="processes that learn and sample"
    )
    flags.add_argument("--problems", type=int, default=32, help="of each step")
    flags.add_argument("--group-size", type=int, default=8)
    flags.add_argument("--max-tokens", type=int, default=192, help="of each answer")
    flags.add_argument("--out", type=Path)
    flags.add_argument("--seconds", type=float, default=0.5, help="of the simulated sampler and learner")
    flags.add_argument("--steps", type=int, default=20)
    flags.add_argument("--lr", type=float, default=1e-3, help="of --part accuracy")
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4], help="the first is compared with")
    flags.add_argument("--replicas", type=int, nargs="+", default=[0], help="of each staleness, or one for all")
    args = flags.parse_args()
    replicas = args.replicas * len(args.staleness) if len(args.replicas) == 1 else args.replicas
    if args.part == "processes":
        measure_processes(args)
    elif args.part == "overlap":
        measure_overlap(args.seconds, args.steps)
    elif args.part == "accuracy":
        measure_accuracy(args.seeds, args.steps, args.lr, args.staleness, replicas[0])
    else:
        measure_demo(args.seeds, args.steps, args.staleness, replicas, args.device)


if __name__ == "__main__":
    main()
