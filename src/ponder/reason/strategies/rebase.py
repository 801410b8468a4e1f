"""REBASE, reward-balanced search: steps with higher scores get more continuations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.allocate import Rounding, rebase_counts
from ponder.reason.strategies.stepwise import SearchLevel, Stepwise
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class Rebase(Stepwise):
    """REBASE (Wu et al. 2024, "Inference Scaling Laws"): the softmax of the step scores at a temperature allocates the
    width; every finished branch lowers the width by one; a weighted vote at the end.

    `rounding`: "paper", or "code" as the published code rounds. Duplicates stay, as in both.
    """

    n: int = 16
    temperature: float = 0.2
    rounding: Rounding = "paper"

    def __post_init__(self) -> None:
        Stepwise.__post_init__(self)
        if self.n < 1:
            raise UsageError(f"n is {self.n}; give at least 1")
        if not self.temperature > 0:
            raise UsageError(f"temperature is {self.temperature}; a softmax needs a positive one")
        if self.rounding not in get_args(Rounding):
            raise UnknownName("rounding", self.rounding, get_args(Rounding))

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        def rule(level: SearchLevel) -> dict[int, int]:
            answers = dict.fromkeys(level.ended, 1)
            width = self.n - len(level.finished) - len(answers)  # B_{i+1} = B_i - C_i
            counts = rebase_counts([level.rank[i] for i in level.live], width, self.temperature, self.rounding)
            return answers | dict(zip(level.live, counts, strict=True))

        await self.run_search(trace, policy, self.require_guide(scorer), self.n, rule)
