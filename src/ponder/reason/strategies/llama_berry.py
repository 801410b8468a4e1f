"""LLaMA-Berry: a tree search over whole answers, each a refinement of its parent, ranked by pairwise comparison."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.budget import until_exhausted
from ponder.reason.operators import evaluate, generate
from ponder.reason.operators.follow_up import FollowUps
from ponder.reason.operators.refine import REFINE_TEMPLATE, refine
from ponder.reason.operators.self_evaluate import WinProbabilities, enhanced_borda_count, vote_on_thoughts
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class LlamaBerry:
    """SR-MCTS (Zhang et al. 2024, arXiv 2410.02884): select an answer by UCT, refine it, compare the new one with all
    others, and back up q <- (1 - gamma) q + gamma (value of the new one).

    An answer's value is alpha (its rank among all, by `enhanced_borda_count`) + (1 - alpha) (its win probability
    against its parent). Pairs are compared by the guide's scores, or, without a guide, by asking the policy
    (`comparisons_per_pair` times).
    """

    n: int = 16  # answers
    sampling: Sampling = Sampling(temperature=0.7, max_tokens=512)
    width: int = 2  # refinements of one answer
    c: float = 1.4
    alpha: float = 0.5
    gamma: float = 0.5
    comparisons_per_pair: int = 1
    template: str = REFINE_TEMPLATE

    def __post_init__(self) -> None:
        if min(self.n, self.width, self.comparisons_per_pair) < 1:
            raise UsageError("n, width and comparisons_per_pair must each be at least 1")
        if not (0 <= self.alpha <= 1 and 0 < self.gamma <= 1 and self.c >= 0):
            raise UsageError("alpha lies in [0, 1], gamma in (0, 1], and c is 0 or more")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        follow_ups = FollowUps(trace, policy)
        wins: dict[tuple[int, int], float] = {}
        closed: dict[int, str] = {}  # answers that cannot be refined, and why
        with until_exhausted(trace):
            if not trace.children(0):
                await generate(trace, 0, policy, self.sampling, last=True)
            await self._update_values(follow_ups, scorer, wins)
            while (at := self._select(trace, closed)) is not None:
                if why := await self._add_refinement(follow_ups, at):
                    closed[at] = why
                else:
                    await self._update_values(follow_ups, scorer, wins)
            if closed and len(trace.answers()) < self.n:
                trace.failed = next(iter(closed.values()))
        trace.chosen = max(trace.answers(), key=lambda i: (trace.steps[i].prior, -i), default=None)

    def _select(self, trace: Trace, closed: Mapping[int, str]) -> int | None:
        """The answer to refine next, by q + c sqrt(ln N / n); None if there are n answers or none can be refined."""
        answers = trace.answers()
        refinements = Counter(_refined_from(trace, i) for i in answers)
        open_ = [i for i in answers if i not in closed and refinements[i] < self.width]
        total = 1 + sum(refinements[i] for i in answers)
        if len(answers) >= self.n or not open_:
            return None

        def worth(i: int) -> float:
            return trace.steps[i].value + self.c * math.sqrt(math.log(total + 1) / (1 + refinements[i]))

        return max(open_, key=lambda i: (worth(i), -i))

    async def _add_refinement(self, follow_ups: FollowUps, at: int) -> str:
        """Add one refinement of an answer; returns why that failed, or an empty string."""
        try:
            new = await refine(follow_ups, at, self.sampling, template=self.template, resample=True)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as error:  # it does not fit the context, for example: it stays an answer
            return str(error)
        return follow_ups.trace.steps[new].pruned

    async def _update_values(
        self, follow_ups: FollowUps, scorer: Scorer | None, wins: dict[tuple[int, int], float]
    ) -> None:
        """Compare the pairs that were not compared, store every answer's own value as its `prior`, and back up the
        values of new answers."""
        trace, answers = follow_ups.trace, follow_ups.trace.answers()
        if scorer is not None:
            await evaluate(trace, [i for i in answers if scorer.name not in trace.steps[i].scores], scorer)
        for a in answers:
            for b in answers:
                if a < b and (a, b) not in wins:
                    wins[a, b] = await self._win_probability(follow_ups, a, b, scorer)
        table: WinProbabilities = np.full((len(answers), len(answers)), math.nan)
        for (a, b), chance in wins.items():
            if a in answers and b in answers:
                i, j = answers.index(a), answers.index(b)
                table[i, j], table[j, i] = chance, 1 - chance
        for i, rank in zip(answers, enhanced_borda_count(table), strict=True):
            above = _refined_from(trace, i)
            here = 0.5 if above is None or above not in answers else table[answers.index(i), answers.index(above)]
            step = trace.steps[i]
            step.prior = self.alpha * rank + (1 - self.alpha) * (0.5 if math.isnan(here) else float(here))
            if not step.visits:
                step.value, step.visits = step.prior, 1
                self._back_up(trace, i)

    async def _win_probability(self, follow_ups: FollowUps, a: int, b: int, scorer: Scorer | None) -> float:
        """The probability that a is better than b; NaN if unknown."""
        trace = follow_ups.trace
        if scorer is not None:
            one, two = trace.score(a, scorer.name), trace.score(b, scorer.name)
            return math.nan if one is None or two is None else 0.5 + 0.5 * float(np.sign(one - two))
        try:
            first, second = await vote_on_thoughts(follow_ups, [a, b], self.sampling, self.comparisons_per_pair)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError:
            return math.nan
        if first.value is None or second.value is None or not first.value + second.value:
            return math.nan
        return first.value / (first.value + second.value)

    def _back_up(self, trace: Trace, new: int) -> None:
        value, at = trace.steps[new].value, _refined_from(trace, new)
        while at is not None:
            step = trace.steps[at]
            step.value = (1 - self.gamma) * step.value + self.gamma * value
            step.visits += 1
            value, at = step.value, _refined_from(trace, at)


def _refined_from(trace: Trace, answer: int) -> int | None:
    """The answer that this one refines; None for the first."""
    return next(iter(trace.steps[trace.path(answer)[0]].cites), None)
