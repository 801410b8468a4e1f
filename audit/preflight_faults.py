"""The checks before a run, on a real model in every dtype: healthy runs pass, and every planted fault is caught."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor

from audit.check_result import CheckResult
from ponder.errors import PonderError
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.nets import decoder
from ponder.nets.decoder import Block
from ponder.pipelines.preflight.checks import Check
from ponder.pipelines.preflight.run_checks import preflight_rl
from ponder.pipelines.rl import RL, build_learners
from ponder.reason.strategies import Samples
from ponder.tasks import Addition
from ponder.train import learner as learner_module
from ponder.train import losses, readouts
from ponder.train.chunked_lm_head import token_logprobs
from ponder.train.objective import KL
from ponder.train.pack import pack
from ponder.train.policy_gradient import DAPO, GRPO, GSPO
from ponder.train.ppo import PPO
from ponder.types import Sampling

GPU = torch.cuda.is_available()
RUNS = {"bfloat16": 200, "float32": 40, "float16": 40} if GPU else {"float32": 6, "bfloat16": 4}
LIMIT_SECONDS = 240.0  # of each dtype's healthy runs
OBJECTIVES = (
    GRPO(),
    GRPO(kl=None),
    GRPO(kl=KL(0.1, "k2")),
    GSPO(),
    DAPO(overlong_buffer=4, max_completion_tokens=24),
    PPO(),
)
NUMBER = r"([\d.]+e[+-]\d+|[\d.]+)"
MEASURED = {
    "log-probabilities": rf"mean {NUMBER}",
    "invariance": rf"differs by {NUMBER}",
    "KL": rf"begins {NUMBER} nats",
    "gradient": rf"compiled it differs by {NUMBER}",
}


def check() -> Iterator[CheckResult]:
    device = "cuda" if GPU else "cpu"
    for dtype, count in RUNS.items():
        policy = load_policy("smollm2", device=device, dtype=dtype)
        yield from _check_healthy_runs(policy, dtype, count)
        yield from _check_planted_faults(policy, dtype)


def _job(dtype: str, seed: int) -> RL:
    """Another objective, sampling, freezing and set of samples with each seed."""
    temperature = (1.0, 0.7, 1.3)[seed % 3]
    strategy = Samples(2, Sampling(temperature=temperature, max_tokens=24))
    return RL(
        Addition(digits=1 + seed % 4),
        "smollm2",
        strategy=strategy,
        algorithm=OBJECTIVES[seed % len(OBJECTIVES)],
        frozen_layers=(0, 12, 20)[seed // 2 % 3],
        seed=seed,
        dtype=dtype,
    )


def _examine(job: RL, policy: PonderPolicy) -> list[Check]:
    try:
        learner, critic = build_learners(job, policy)
        return asyncio.run(preflight_rl(job, policy, learner, critic))[0]
    except PonderError as why:
        return [Check("error", False, str(why), "")]


def _check_healthy_runs(policy: PonderPolicy, dtype: str, count: int) -> Iterator[CheckResult]:
    alarms: Counter[str] = Counter()
    largest: dict[str, float] = {}
    example, begun, done = "", time.monotonic(), 0
    for seed in range(count):
        if time.monotonic() - begun > LIMIT_SECONDS:
            break
        for c in _examine(_job(dtype, seed), policy):
            if c.passed is False:
                alarms[c.name] += 1
                example = example or f"; seed {seed}, {c.name}: {c.value}"
            if c.name in MEASURED and (item := re.search(MEASURED[c.name], c.value)):
                largest[c.name] = max(largest.get(c.name, 0.0), float(item[1]))
        done += 1
    spread = ", ".join(f"{name} {value:.1e}" for name, value in largest.items())
    text = f"{sum(alarms.values())} false alarms in {done} runs (largest seen: {spread}){example}"
    yield CheckResult(f"healthy runs in {dtype}", not alarms, text)


def _check_planted_faults(policy: PonderPolicy, dtype: str) -> Iterator[CheckResult]:
    for fault, (expected, plant) in FAULTS.items():
        caught, tried, other = 0, 0, Counter[str]()
        for seed in range(3 if GPU else 1):
            job = replace(_job(dtype, seed), algorithm=GRPO())
            with plant():
                result = [c.name for c in _examine(job, policy) if c.passed is False]
            tried += 1
            caught += expected in result
            other.update(result)
        seen = ", ".join(other) or "nothing"
        yield CheckResult(f"{fault} in {dtype}", caught == tried, f"caught in {caught} of {tried}; failed: {seen}")


def _kl_term(broken: object) -> AbstractContextManager[object]:
    return mock.patch.dict(losses.KL_ESTIMATORS, {"k3": broken})


def _packing(change: object) -> AbstractContextManager[object]:
    return mock.patch.object(learner_module, "pack", lambda part, device, notes=(): change(pack(part, device, notes)))  # type: ignore[operator]


def _temperature() -> AbstractContextManager[object]:
    def cooler(
        hidden_NE: Tensor, weight_VE: Tensor, target_N: Tensor, temperature: float, banned: int | None
    ) -> tuple[Tensor, Tensor]:
        return token_logprobs(hidden_NE, weight_VE, target_N, temperature * 0.6, banned)

    return mock.patch.object(readouts, "token_logprobs", cooler)


def _frozen() -> AbstractContextManager[object]:
    """Upper layers run, and their parameters get no gradient: what reused graphs once did."""

    def run(block: Block, x: Tensor, turn: tuple[Tensor, Tensor], attend: object, *_: object) -> Tensor:
        if block.self_attn.layer < 25:
            return block(x, turn, attend)
        fixed = {n: p.detach() for n, p in block.named_parameters()}
        return torch.func.functional_call(block, fixed, (x, turn, attend))

    return mock.patch.multiple(decoder, run_compiled_block=run) if GPU else mock.patch.object(Block, "__call__", run)


FAULTS: dict[str, tuple[str, Callable[[], AbstractContextManager[object]]]] = {
    "a KL term without gradient": ("KL", lambda: _kl_term(lambda p, q: losses.k3(p.detach(), q) + 0 * p)),
    "a KL term of the wrong sign": ("KL", lambda: _kl_term(lambda p, q: -losses.k3(p, q))),
    "half a KL term": ("KL", lambda: _kl_term(lambda p, q: losses.k3(p, q) / 2)),
    "another temperature in the learner": ("log-probabilities", _temperature),
    "denominators of a micro-batch": (
        "invariance", lambda: _packing(lambda b: replace(b, weight_N=b.weight_N / b.weight_N.sum())),
    ),
    "EOS masked": (
        "EOS", lambda: _packing(lambda b: replace(b, weight_N=torch.where(b.target_N == 2, 0.0, b.weight_N))),
    ),
    "layers that get no gradient": ("gradient", _frozen),
}  # fmt: skip
