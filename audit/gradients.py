"""The demo's recipe on every device that is here, against the CPU: the same traces must have the same gradient."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace

import torch

from audit.check_result import CheckResult
from ponder.cli import recipe_files
from ponder.errors import PonderError
from ponder.models.load import load_policy
from ponder.nets.lora import LoRA
from ponder.pipelines.preflight.run_checks import run_preflight
from ponder.pipelines.rl import RL, build_learners, collect_rollouts
from ponder.pipelines.training.session import TrainingState
from ponder.train.critic import write_values
from ponder.train.ppo import PPO
from ponder.types import Sampling, Trace

MAX_RELATIVE_DIFFERENCE = {
    "float32": 1e-3,
    "bfloat16": 0.1,
}  # of the CPU's norm in float32: rounding alone leaves some 0.02 in bfloat16


def check() -> Iterator[CheckResult]:
    jobs = {
        "the demo": _recipe(),
        "all layers": replace(_recipe(), frozen_layers=0),
        "LoRA": replace(_recipe(), frozen_layers=0, lora=LoRA(8)),
        "PPO's policy": replace(_recipe(), algorithm=PPO()),
    }
    for name, job in jobs.items():
        traces, expected = asyncio.run(_cpu_traces_and_gradient(job))
        for device, dtype, compiled in _devices():
            yield _compare(name, replace(job, device=device, dtype=dtype), traces, expected, compiled)


def _recipe() -> RL:
    job = recipe_files.load_recipe(recipe_files.find_recipe("addition"))()
    return replace(
        job, problems_per_step=8, group_size=4, sampling=Sampling(max_tokens=10), device="cpu", dtype="float32"
    )


def _devices() -> Iterator[tuple[str, str, bool]]:
    """Device, dtype, and whether blocks are compiled, which takes a C++ compiler on a processor."""
    if torch.cuda.is_available():
        yield from (("cuda", "float32", True), ("cuda", "bfloat16", True))
    else:
        yield "cpu", "float32", any(map(shutil.which, ("c++", "g++", "clang++")))


async def _cpu_traces_and_gradient(job: RL) -> tuple[list[Trace], dict[str, torch.Tensor]]:
    """Traces of the CPU's policy, credited, and the gradient that its learner has of them."""
    policy = load_policy(job.model, template=job.template, device="cpu", dtype="float32")
    learner, critic = build_learners(job, policy)
    _, traces = await collect_rollouts(job, policy, 0, TrainingState())
    if critic is not None:
        write_values(critic, traces)
    for i, trace in enumerate(traces):  # few are right at first: half of the answers are made so
        for k, step in enumerate(s for s in trace.steps if s.sampled):
            step.scores = {n: replace(s, value=float((i + k) % 2)) for n, s in step.scores.items()}
    learner.write_reference_logprobs(traces)
    job.algorithm.credit(traces, job.task.verifier.name, {})
    grads = learner.gradient(traces)
    return traces, grads


def _compare(name: str, job: RL, traces: list[Trace], expected: dict[str, torch.Tensor], compiled: bool) -> CheckResult:
    where = f"{name} on {job.device} in {job.dtype}{', compiled' if compiled else ''}"
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=job.dtype)
    learner, critic = build_learners(job, policy)
    learner.compiled = compiled
    try:
        asyncio.run(run_preflight(job, policy, learner, critic))  # as a run does, and before its first step
        result = learner.gradient(traces)
    except PonderError as why:
        return CheckResult(where, False, str(why))
    if result.keys() != expected.keys():
        return CheckResult(where, False, f"{len(result)} parameters have a gradient, on the CPU {len(expected)}")
    square = sum(float((result[n].double().cpu() - g.double()).square().sum()) for n, g in expected.items())
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in expected.values()))
    off = math.sqrt(square) / norm
    limit = MAX_RELATIVE_DIFFERENCE[job.dtype]
    text = f"{len(result)} parameters learn, norm {norm:.5f}, relative difference {off:.1e} (at most {limit:g})"
    return CheckResult(where, off <= limit, text)
