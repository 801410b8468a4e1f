"""rStar's mutual consistency: trust an answer if completions of its first part reach the same answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UsageError
from ponder.protocols import Policy, Scorer, Strategy
from ponder.reason.answer_extraction import answer_of_step, extract_answer
from ponder.reason.budget import until_exhausted
from ponder.reason.operators import evaluate, expand, majority_step
from ponder.reason.strategies.samples import Samples
from ponder.types import Sampling, Score, Step, Trace

AGREEMENT_SCORE = "agreement"  # the name of its scores


@dataclass(frozen=True, slots=True)
class RStarConsistency:
    """Mutual consistency (Qi et al. 2024, arXiv 2408.06195): `strategy` finds answers; each is cut after `prefix_share`
    of its tokens and completed again `n` times. Its score is the share of completions with the same answer, times the
    guide's score. In rStar another model completes; here the same policy does.
    """

    strategy: Strategy = Samples(8, Sampling(temperature=0.8, max_tokens=512))
    n: int = 2
    prefix_share: float = 0.5  # share of an answer's tokens that is kept; rStar samples 0.2 to 0.8
    sampling: Sampling = Sampling(temperature=0.8, max_tokens=512)

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 < self.prefix_share < 1:
            raise UsageError("n must be at least 1, and prefix_share lies between 0 and 1")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        with until_exhausted(trace):
            await self.strategy(trace, policy, scorer)
        looks = {
            i: self._prefix_root(trace, i, policy) for i in trace.answers() if answer_of_step(trace, i) is not None
        }
        with until_exhausted(trace):
            await self._complete(trace, list(looks.values()), policy)
        for i, at in looks.items():
            if (score := completion_agreement(trace, i, trace.children(at))) is not None:
                trace.steps[i].scores[AGREEMENT_SCORE] = score
        if scorer is not None:  # the inner strategy may not have used it
            with until_exhausted(trace):
                await evaluate(trace, [i for i in looks if scorer.name not in trace.steps[i].scores], scorer)
        guided = {i: 1.0 if scorer is None else trace.score(i, scorer.name) for i in looks}
        agreed = {i: trace.score(i, AGREEMENT_SCORE) for i in looks}
        known = {i: s * g for i in looks if (s := agreed[i]) is not None and (g := guided[i]) is not None}
        if known:
            trace.chosen = max(known, key=lambda i: (known[i], -i))
        elif trace.chosen not in trace.answers():  # no completions and no choice: the most frequent answer
            trace.chosen = majority_step(trace, list(looks), trace.extract_answer or extract_answer)

    def _prefix_root(self, trace: Trace, step: int, policy: Policy) -> int:
        """A root with the prompt and the first part of an answer, which cites the answer; reused if it exists."""
        root = trace.path(step)[0]
        prompt, whole = trace.steps[root].token_ids, trace.token_ids(step)
        prefix = whole[: len(prompt) + math.floor(self.prefix_share * (len(whole) - len(prompt)))]
        for i, candidate in enumerate(trace.steps):
            if candidate.parent is None and candidate.cites == (step,) and np.array_equal(candidate.token_ids, prefix):
                return i
        return trace.add(Step(None, policy.text(prefix[len(prompt) :]), prefix, cites=(step,)))

    async def _complete(self, trace: Trace, looks: Sequence[int], policy: Policy) -> None:
        """Sample the missing completions, as meta steps: they are about an answer and no answers."""
        missing = {at: count for at in looks if (count := self.n - len(trace.children(at))) > 0}
        if not missing:
            return
        try:
            await expand(trace, [*missing], policy, self.sampling, [*missing.values()], last=True, meta=True)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError:  # all failed; each is pruned with its reason
            pass


def completion_agreement(trace: Trace, step: int, completions: Sequence[int]) -> Score | None:
    """The share of completions that reach the step's answer; None without completions."""
    answer = answer_of_step(trace, step)
    reads = [_full_answer(trace, k) for k in completions if not trace.steps[k].pruned]
    agree = sum(r == answer for r in reads)
    return Score(agree / len(reads), f"{agree} of {len(reads)} completions reach the same answer") if reads else None


def _full_answer(trace: Trace, completion: int) -> str | None:
    prefix = trace.steps[trace.path(completion)[0]].text
    return (trace.extract_answer or extract_answer)(prefix + trace.text(completion))
