"""Best of n: sample n answers and take the one with the highest score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators import prune
from ponder.reason.operators.auto_cut import CutOrAuto
from ponder.reason.operators.evaluate import Reduction
from ponder.reason.operators.uncertainty import mean_logprob, sum_logprob
from ponder.reason.strategies.stepwise import AnswerChoice, SearchLevel, Stepwise
from ponder.types import Sampling, Trace

RankBy = Literal["score", "logprob", "logprob_sum"]


@dataclass(frozen=True, slots=True)
class BestOfN(Stepwise):
    """n independent answers, of which the one with the highest score is chosen.

    `rank_by="score"`: the guide's score. The guide is an outcome reward model, a verifier, or a process reward model,
    which scores every step (of the trace, with a `cut`; else every line); the answer's score is then their minimum, or
    as `reduce` says (Lightman et al. 2024, Uesato et al. 2022). `rank_by="logprob"`: the mean log-probability of the
    tokens, and "logprob_sum" their sum; both need no guide. `choose="weighted"` sums the scores of equal answers (Li et
    al. 2023).
    """

    n: int = 8
    rank_by: RankBy = "score"
    sampling: Sampling = field(default=Sampling(), kw_only=True)
    cut: CutOrAuto | None = field(default=None, kw_only=True)
    choose: AnswerChoice = field(default="best", kw_only=True)
    default_reduce: ClassVar[Reduction] = "min"

    def __post_init__(self) -> None:
        Stepwise.__post_init__(self)
        if self.n < 1:
            raise UsageError(f"n is {self.n}; give at least 1")
        if self.rank_by not in get_args(RankBy):
            raise UnknownName("rank_by", self.rank_by, get_args(RankBy))
        if self.rank_by != "score" and self.reduce is not None:
            raise UsageError("a log-probability is of the whole answer: leave out reduce, or give rank_by='score'")

    def unused(self) -> dict[str, str]:
        out = Stepwise.unused(self)
        if self.rank_by != "score":
            why = f"the answer is chosen by rank_by={self.rank_by}: give rank_by=score"
            out |= dict.fromkeys(("guide", "reduce"), why)
        return out

    def missing_guide(self) -> str:
        return Stepwise.missing_guide(self) if self.rank_by == "score" else ""

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        def rule(level: SearchLevel) -> dict[int, int]:
            return dict.fromkeys([*level.live, *level.ended], 1)

        if self.rank_by == "score":
            self.require_guide(scorer)
        await self.run_search(trace, policy, scorer, self.n, rule)

    async def rate(self, trace: Trace, steps: Sequence[int], policy: Policy, guide: Scorer | None) -> None:
        if self.rank_by == "score":
            await Stepwise.rate(self, trace, steps, policy, guide)
            return
        silent = [i for i in steps if mean_logprob(trace, i) is None]
        prune(trace, silent, "no score: the policy does not return log-probabilities; give rank_by='score'")

    def vote_weights(self, ranks: Sequence[float]) -> Sequence[float]:
        """Log-probabilities become probabilities: a vote must not count against its answer."""
        return ranks if self.rank_by == "score" else [math.exp(r) for r in ranks]

    def rank(self, trace: Trace, step: int, guide: Scorer | None) -> float | None:
        if self.rank_by == "score":
            return Stepwise.rank(self, trace, step, guide)
        return mean_logprob(trace, step) if self.rank_by == "logprob" else sum_logprob(trace, step)
