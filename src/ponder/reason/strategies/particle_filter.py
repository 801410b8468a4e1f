"""A particle filter over thoughts."""

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
    """n particles; after every step n are drawn anew by weight, those that have ended among them, until all have ended
    (Puri et al. 2025, "A Probabilistic Inference Approach to Inference-Time Scaling of LLMs").

    The weights are the softmax of the scores' log-odds, which the authors' code takes for a process reward model's
    probabilities; or of the scores themselves; or the scores in proportion. The answer is the particle with the highest
    weight. A particle drawn k times goes on k times, so duplicates are what the filter is made of.
    """

    n: int = 8
    weight: ParticleWeighting = "odds"
    resampling: Resampling = "multinomial"
    seed: int = 0  # of the draws among particles
    choose: AnswerChoice = field(default="best", kw_only=True)

    def __post_init__(self) -> None:
        Stepwise.__post_init__(self)
        if self.n < 1:
            raise UsageError(f"n is {self.n}; a filter needs at least one particle")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; it must be 0 or positive")
        for what, kind in (("weight", ParticleWeighting), ("resampling", Resampling)):
            if getattr(self, what) not in get_args(kind):
                raise UnknownName(what, getattr(self, what), get_args(kind))

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        pick = multinomial_counts if self.resampling == "multinomial" else systematic_counts

        def rule(level: SearchLevel) -> dict[int, int]:
            if not level.live:
                return dict.fromkeys(level.ended, 1)
            copies = {**level.finished, **dict.fromkeys(level.ended, 1), **dict.fromkeys(level.live, 1)}
            particles = [i for i, count in copies.items() for _ in range(count)]
            weights = particle_weights([level.rank[i] for i in particles], self.weight)
            drawn = pick(weights, self.n, np.random.default_rng([self.seed, level.depth]))
            given = dict.fromkeys(copies, 0)
            for i, count in zip(particles, drawn, strict=True):
                given[i] += count
            return given

        await self.run_search(trace, policy, self.require_guide(scorer), self.n, rule)

    def vote_weights(self, ranks: Sequence[float]) -> Sequence[float]:
        return particle_weights(ranks, self.weight).tolist() if ranks else []
