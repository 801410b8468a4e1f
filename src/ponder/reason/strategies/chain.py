"""One chain of thought: write once, from the question to the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ponder.protocols import Policy, Scorer
from ponder.reason.operators import evaluate, generate
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class Chain:
    n: ClassVar[int] = 1
    sampling: Sampling = Sampling(temperature=0.0)

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        steps = await generate(trace, 0, policy, self.sampling, last=True)
        if scorer is not None:
            await evaluate(trace, steps, scorer)
