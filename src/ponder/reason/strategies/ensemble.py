"""Several independent chains: a vote's ballots, best-of-n's candidates, and GRPO's group."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators import evaluate, generate
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class Ensemble:
    n: int = 8
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"n is {self.n}; an ensemble needs at least one sample")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        steps = await generate(trace, 0, policy, self.sampling, self.n, last=True)
        if scorer is not None:
            await evaluate(trace, steps, scorer)
