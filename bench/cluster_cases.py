"""Set-ups that `cluster_sim.py` runs: those of published speed-ups, and a sweep over GPUs, models and networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from cluster_costs import (
    GPUS,
    MODELS,
    NETWORKS,
    LearnerCost,
    PassCost,
    Sharding,
    measured_rates,
    publish_seconds,
    verify_seconds,
)
from cluster_events import Cluster, Outcome, Simulation, Workload

SPREAD = 0.8  # of the logarithm of lengths: the one number that all set-ups share and nobody published
NORMAL = NormalDist()
CORES_PER_NODE = 16  # that verify


def capped_mean(mu: float, spread: float, cap: float) -> float:
    """Of min(X, cap) with X log-normal."""
    low = (math.log(cap) - mu) / spread
    return math.exp(mu + spread**2 / 2) * NORMAL.cdf(low - spread) + cap * (1 - NORMAL.cdf(low))


def long_tailed(mean: float, cap: int, spread: float) -> Callable[[np.random.Generator, int], np.ndarray[Any, Any]]:
    """Log-normal lengths that are cut at the cap, and have this mean after it."""
    if not 0 < mean < cap:
        raise ValueError(f"a mean of {mean:g} tokens does not lie below the cap of {cap}")
    low, high = -5.0, math.log(cap) + 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if capped_mean(middle, spread, cap) < mean else (low, middle)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
        return np.clip(np.rint(rng.lognormal(low, spread, n)), 1, cap).astype(int)

    return draw


@dataclass(frozen=True)
class Setup:
    """One way to run RL. With `learner_gpus` 0 the same GPUs sample and then learn."""

    model: str
    gpu: str
    gpus: int
    learner_gpus: int
    mean: float  # tokens of an answer
    cap: int
    batch: int  # samples of a step
    prompt: int = 256
    staleness: float = 0
    rule: Literal["batch", "first"] = "batch"
    fetches: int = 1
    minibatches: int = 1  # of a fetch
    tensor_parallel: int = 1
    sharding: Sharding = Sharding()
    recompute_logprobs: bool = False
    recompute_cache: bool = False
    background: bool = False  # nobody waits while weights are on the wire
    network: str = "InfiniBand"  # of the learner
    publish_network: str = ""  # to the samplers, where it is another
    software: str = "peers"
    pass_overhead: float = 0.0  # seconds of each decoding pass, beside what was measured
    spread: float = SPREAD

    @property
    def ranks(self) -> int:
        return self.learner_gpus or self.gpus

    @property
    def replicas(self) -> int:
        return (self.gpus - self.learner_gpus) // self.tensor_parallel

    def learner(self) -> LearnerCost:
        return LearnerCost(
            MODELS[self.model], GPUS[self.gpu], NETWORKS[self.network], measured_rates(self.software), self.ranks,
            self.sharding, self.minibatches, self.recompute_logprobs,
        )  # fmt: skip

    def sampler(self) -> PassCost:
        rates = measured_rates(self.software)
        return PassCost(MODELS[self.model], GPUS[self.gpu], rates, self.tensor_parallel, self.pass_overhead)

    def publish(self) -> float:
        return publish_seconds(MODELS[self.model], NETWORKS[self.publish_network or self.network])

    def workload(self, seed: int = 0) -> Workload:
        return Workload(self.batch, long_tailed(self.mean, self.cap, self.spread), self.prompt, seed)

    def cluster(self) -> Cluster:
        return Cluster(
            self.replicas, self.sampler(), self.learner().update_seconds, self.publish(), self.staleness, self.rule,
            self.fetches, self.recompute_cache, self.background, verifiers=CORES_PER_NODE * max(1, self.gpus // 8),
            verify=verify_seconds(),
        )  # fmt: skip

    def run(self, steps: int = 4, seed: int = 0) -> Outcome:
        return Simulation(self.cluster(), self.workload(seed)).run(steps)


@dataclass(frozen=True)
class Published:
    """A speed-up: the step time of the first set-up over that of the second, with the seconds that were published."""

    name: str
    source: str
    steps: tuple[float, float]
    before: Setup
    after: Setup

    @property
    def figure(self) -> float:
        return self.steps[0] / self.steps[1]


def _verl(gpus: int, steps: tuple[float, float]) -> Published:
    # Qwen2.5-Math-7B on H20, 512 prompts x 16, at most 28k tokens, mini-batches of 32 prompts; half of the GPUs sample.
    sync = Setup("7B", "H20", gpus, 0, VERL_MEAN, 28672, 8192, minibatches=16, recompute_logprobs=True)
    after = replace(
        sync, learner_gpus=gpus // 2, staleness=0.5, rule="first", fetches=4, minibatches=4, recompute_logprobs=False,
        recompute_cache=True,
    )  # fmt: skip
    return Published(f"verl, 7B, {gpus} H20", "verl docs/advance/fully_async.md", steps, sync, after)


def _areal(model: str, nodes: int, hours: tuple[float, float]) -> Published:
    # R1-Distill-Qwen on H800, 512 prompts x 16, at most 27,648 tokens, 4 mini-batches; 3 of 4 GPUs sample.
    gpus = 8 * nodes
    sync = Setup(model, "H800", gpus, 0, R1_DISTILL_MEAN, 27648, 8192, minibatches=4, recompute_logprobs=True)
    after = replace(sync, learner_gpus=gpus // 4, staleness=4, rule="first", recompute_cache=True)
    steps = hours[0] * 3600 / AREAL_STEPS, hours[1] * 3600 / AREAL_STEPS
    return Published(f"AReaL, {model}, {gpus} H800", "AReaL blog v0.3", steps, sync, after)


def _nemo(model: str, gpus: int, mean: float, cap: int, batch: int, **more: Any) -> Setup:
    return Setup(model, "H100", gpus, 0, mean, cap, batch, recompute_logprobs=True, prompt=128, **more)


AREAL_STEPS = 250  # the blog counts 1,000 updates, of 4 mini-batches each step
VERL_MEAN = 900.0  # tokens; not published: an assumption
R1_DISTILL_MEAN = 7000.0  # tokens; not published: an assumption
_QWEN_235B = Sharding(stays=True, model_parallel=32, pipeline=8)
_DEEPSEEK = Sharding(stays=True, model_parallel=16, pipeline=16)
_Q30 = _nemo("30B-A3B", 32, 3200, 4096, 2048, tensor_parallel=2, minibatches=4, sharding=Sharding(stays=True))
_Q235 = _nemo("235B-A22B", 128, 5700, 8192, 512, tensor_parallel=16, sharding=_QWEN_235B)
_DS = _nemo("DeepSeek-V3", 256, 700, 1536, 512, tensor_parallel=32, sharding=_DEEPSEEK)
_NEMO = "NeMo RL docs/about/performance-summary.md v0.6"
_Q30_1OFF = replace(
    _Q30,
    learner_gpus=16,
    staleness=1,
    rule="first",
    minibatches=1,
    sharding=Sharding(stays=True, model_parallel=2, pipeline=2),
)
_Q30_8OFF = replace(_Q30, gpus=192, learner_gpus=128, staleness=8, rule="first")
_Q235_1OFF = replace(_Q235, gpus=256, learner_gpus=128, staleness=1, rule="first", tensor_parallel=8)
_DS_1OFF = replace(_DS, gpus=512, learner_gpus=256, staleness=1, rule="first")

PUBLISHED = (
    _areal("1.5B", 16, (41.0, 14.8)),
    _areal("7B", 24, (57.7, 25.4)),
    _verl(32, (790.10, 294.77)),
    _verl(64, (365.28, 189.26)),
    _verl(128, (356.30, 150.63)),
    Published("NeMo, 30B-A3B, 32 H100: one step off", _NEMO, (192, 152), _Q30, _Q30_1OFF),
    Published("NeMo, 30B-A3B, 32 to 192 H100: 8 steps off", _NEMO, (152, 34.5), _Q30_1OFF, _Q30_8OFF),
    Published("NeMo, 235B-A22B, 128 to 256 H100", _NEMO, (395, 312), _Q235, replace(_Q235, gpus=256)),
    Published("NeMo, 235B-A22B, 256 H100: one step off", _NEMO, (312, 231), replace(_Q235, gpus=256), _Q235_1OFF),
    Published("NeMo, DeepSeek-V3, 256 to 512 H100", _NEMO, (134, 111), _DS, replace(_DS, gpus=512)),
    Published("NeMo, DeepSeek-V3, 512 H100: one step off", _NEMO, (111, 64.1), replace(_DS, gpus=512), _DS_1OFF),
)  # fmt: skip
