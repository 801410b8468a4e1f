"""Reinforcement learning with a verifiable reward, top to bottom.

problems -> traces -> verifier's scores -> credit -> packed batch -> optimiser step -> new weights -> policy
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ponder.errors import Interrupted, UsageError
from ponder.models.load import Fresh, load_policy, pin
from ponder.models.native import Native
from ponder.pipelines.solve import pick, solve_all
from ponder.protocols import Silent, Strategy, Task, Watch
from ponder.reason.strategies import Ensemble
from ponder.runs import Run, read_metrics
from ponder.train import checkpoint
from ponder.train.learner import Learner
from ponder.train.objective import GRPO, Objective
from ponder.train.optimiser import AdamW
from ponder.types import Sampling, Trace


@dataclass(frozen=True)
class RL:
    """The job. Calling it with a run directory trains, or goes on where that run stopped."""

    task: Task
    model: str | Fresh = "smollm2"
    template: str | None = None  # None: the model's own chat template
    strategy: Strategy = field(default_factory=lambda: Ensemble(n=8, sampling=Sampling(max_tokens=256)))
    objective: Objective = GRPO(beta=0.0)
    optimiser: AdamW = AdamW()
    steps: int = 100
    prompts: int = 32  # per step, each with the strategy's samples
    temperature: float = 1.0  # of sampling and of every log-probability
    frozen_layers: int = 0  # the lowest so many stay as they are, with embeddings and head
    micro_tokens: int = 4096  # memory only: the gradient does not depend on it
    save_every: int = 20
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if min(self.steps, self.prompts, self.micro_tokens, self.save_every) < 1 or self.seed < 0:
            raise UsageError("steps, prompts, micro_tokens and save_every must each be at least 1, seed at least 0")
        if getattr(self.strategy, "n", 2) < 2:
            raise UsageError("a group of one has no baseline: sample at least 2 completions per problem (--n 8)")
        sampling = getattr(self.strategy, "sampling", Sampling(temperature=self.temperature))
        if sampling.temperature != self.temperature or not self.temperature:
            both = f"the strategy samples at temperature {sampling.temperature}, the learner at {self.temperature}"
            raise UsageError(f"{both}: they must be equal and positive")
        if sampling.seed is not None:
            raise UsageError("a sampling seed would draw the same numbers at every step: set the job's seed instead")
        if sampling.truncated:
            warnings.warn(
                "top_p, top_k and min_p renormalise: the learner's ratio to the sampler is not 1", stacklevel=2
            )

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> Native:
        job = replace(self, model=pin(self.model))
        with Run(folder, job) as run:
            return asyncio.run(train(job, run, watch or Silent()))


async def train(job: RL, run: Run, watch: Watch) -> Native:
    watch.phase("load")
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=checkpoint.dtype(run, job.dtype))
    policy.watch = watch.tokens
    learner = Learner(
        policy.net,
        job.objective,
        job.optimiser,
        temperature=job.temperature,
        micro_tokens=job.micro_tokens,
        frozen_layers=job.frozen_layers,
    )
    first = policy.version = checkpoint.restore(run, learner)  # 0 in a new run
    problems, verifier = job.task.train, job.task.verifier
    seen = next((m["num_tokens"] for m in reversed(read_metrics(run.folder))), 0.0)

    for step in range(first, job.steps):
        done = step
        try:
            began = time.perf_counter()
            policy.stream(job.seed, step)
            watch.phase("sample")
            asked = pick(problems, job.seed, step * job.prompts, job.prompts)
            traces = await solve_all(asked, job.strategy, policy, verifier)
            sampled = time.perf_counter()

            for trace in traces:
                job.objective.credit(trace, verifier.name)
            watch.phase("learn")
            learned = learner.step(traces, watch.share)
            policy.version = done = step + 1
            ended = time.perf_counter()

            metrics = summary(traces, verifier.name) | learned
            seen = metrics["num_tokens"] = metrics["num_tokens"] + seen
            metrics |= {"time/sample": sampled - began, "time/learn": ended - sampled, "step_time": ended - began}
            run.traces(step, traces)
            run.metrics(step, metrics)
            watch.step(done, job.steps, metrics, traces)
            if done % job.save_every == 0 or done == job.steps:
                watch.phase("save")
                checkpoint.save(run, done, learner, policy.tokenizer.save)
        except (Interrupted, BaseExceptionGroup) as stop:
            if isinstance(stop, BaseExceptionGroup) and not stop.subgroup(Interrupted):
                raise
            learner.masters.forget()
            checkpoint.save(run, done, learner, policy.tokenizer.save)
            so_far = f"stopped after {done} of {job.steps} steps"
            raise Interrupted(f"{so_far}; the same command goes on from there") from None
    return policy


def summary(traces: Sequence[Trace], scorer: str) -> dict[str, float]:
    """What a step's samples looked like, under TRL's names. Undecided scores are counted, not averaged."""
    groups = [[t.score(i, scorer) for i in t.answers()] for t in traces]
    judged = [[r for r in g if r is not None] for g in groups]
    rewards = [r for g in judged for r in g]
    spreads = [float(np.std(g, ddof=1)) for g in judged if len(g) > 1]  # TRL's: with Bessel's correction
    steps = [t.steps[i] for t in traces for i in t.answers()]
    lengths = [len(s.token_ids) for s in steps]
    ended = [len(s.token_ids) for s in steps if s.stop == "eos"]
    return {
        "reward": float(np.mean(rewards)) if rewards else float("nan"),
        "reward_std": float(np.mean(spreads)) if spreads else 0.0,
        "frac_reward_zero_std": float(np.mean([len(set(g)) <= 1 for g in judged])),
        "frac_undecided": 1 - len(rewards) / max(1, sum(map(len, groups))),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": float(np.mean([s.stop == "length" for s in steps])),
        "completions/mean_terminated_length": float(np.mean(ended)) if ended else 0.0,
        "num_tokens": float(sum(t.cost.prompt_tokens + t.cost.generated_tokens for t in traces)),
    }
