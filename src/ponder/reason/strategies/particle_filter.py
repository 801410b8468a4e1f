"""Particle filtering over reasoning steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.allocate import ParticleWeighting, multinomial_counts, particle_weights, systematic_counts
from ponder.reason.strategies.stepwise import AnswerChoice, SearchLevel, Stepwise
from ponder.types import Trace

Resampling = Literal["multinomial", "systematic"]


@dataclass(frozen=True, slots=True)
class ParticleFilter(Stepwise):
    """n particles; after every step n are resampled by weight, finished ones among them, until all are finished
    (Puri et al. 2025, "A Probabilistic Inference Approach to Inference-Time Scaling of LLMs").

    `weight`: "odds", the softmax of the scores' log-odds, as the authors' code does for a process reward model's
    probabilities; "softmax" of the scores themselves; or "share", in proportion to the scores. The answer is the
    particle with the highest weight. A particle that is resampled k times is continued k times: duplicates are
    intended.
    """

    n: int = 8
    weight: ParticleWeighting = "odds"
    resampling: Resampling = "multinomial"
    seed: int = 0  # of the resampling
    choose: AnswerChoice = field(default="best", kw_only=True)

    def __post_init__(self) -> None:
        Stepwise.__post_init__(self)
        if self.n < 1:
            raise UsageError(f"n is {self.n}; give at least 1")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; it must be 0 or positive")
        for name, kind in (("weight", ParticleWeighting), ("resampling", Resampling)):
            if getattr(self, name) not in get_args(kind):
                raise UnknownName(name, getattr(self, name), get_args(kind))

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        pick = multinomial_counts if self.resampling == "multinomial" else systematic_counts

        def rule(level: SearchLevel) -> dict[int, int]:
            if not level.live:
                return dict.fromkeys(level.ended, 1)
            copies = {**level.finished, **dict.fromkeys(level.ended, 1), **dict.fromkeys(level.live, 1)}
            particles = [i for i, count in copies.items() for _ in range(count)]
            weights = particle_weights([level.rank[i] for i in particles], self.weight)
            picks = pick(weights, self.n, np.random.default_rng([self.seed, level.depth]))
            counts = dict.fromkeys(copies, 0)
            for i, count in zip(particles, picks, strict=True):
                counts[i] += count
            return counts

        await self.run_search(trace, policy, self.require_guide(scorer), self.n, rule)

    def vote_weights(self, ranks: Sequence[float]) -> Sequence[float]:
        return particle_weights(ranks, self.weight).tolist() if ranks else []
