"""rStar: answers are believed where a second look, given only the first part of the way, comes to the same end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import Spent, UsageError
from ponder.protocols import Policy, Scorer, Strategy
from ponder.reason.operators import expand
from ponder.reason.reading import answer, read
from ponder.reason.strategies.ensemble import Ensemble
from ponder.types import Sampling, Step, Trace


@dataclass(frozen=True, slots=True)
class Mutual:
    """Mutual consistency (Qi et al. 2024, arXiv 2408.06195): a strategy finds answers; each is cut off after a share of
    its tokens and completed again `n` times; it scores the share of completions that come to its answer, times what
    the guide says of it. rStar's second look is another model's; here it is the same policy's.
    """

    tree: Strategy = Ensemble(8, Sampling(temperature=0.8, max_tokens=512))
    n: int = 2
    kept: float = 0.5  # share of an answer's tokens that the second look is given; rStar draws 0.2 to 0.8
    sampling: Sampling = Sampling(temperature=0.8, max_tokens=512)

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 < self.kept < 1:
            raise UsageError("n must be at least 1, and the share that is kept lies between 0 and 1")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        before = [s.cites for s in trace.steps]
        if not any(before):  # no second look was taken yet
            await self.tree(trace, policy, scorer)
        first = [i for i in trace.answers() if not _second(trace, i) and answer(trace, i) is not None]
        looks = {i: self._look(trace, i, policy) for i in first}
        lacking = {at: self.n - len(trace.children(at)) for at in looks.values()}
        try:
            asked = [at for at, count in lacking.items() if count > 0]
            if asked:
                await expand(trace, asked, policy, self.sampling, [lacking[at] for at in asked], last=True)
        except Spent:
            pass
        scores = {i: agreement(trace, i, trace.children(at)) for i, at in looks.items()}
        for i, at in looks.items():
            for k in trace.children(at):
                trace.steps[k].aside = True  # it says something about an answer, and is none
            trace.steps[i].value, trace.steps[i].visits = scores[i], len(trace.children(at))
        guided = {i: 1.0 if scorer is None else trace.score(i, scorer.name) for i in looks}
        known = {i: s * g for i, s in scores.items() if (g := guided[i]) is not None}
        trace.chosen = max(known, key=lambda i: (known[i], -i), default=trace.chosen)

    def _look(self, trace: Trace, step: int, policy: Policy) -> int:
        """The prompt and the first part of an answer, as a prompt that cites it; found again if it is there."""
        for i, found in enumerate(trace.steps):
            if found.parent is None and found.cites == (step,):
                return i
        root = trace.path(step)[0]
        prompt, whole = trace.steps[root].token_ids, trace.token_ids(step)
        given = whole[: len(prompt) + math.floor(self.kept * (len(whole) - len(prompt)))]
        return trace.add(Step(None, policy.text(given[len(prompt) :]), given, cites=(step,)))


def agreement(trace: Trace, step: int, completions: Sequence[int]) -> float:
    """The share of completions, of those that were written, that come to the step's answer."""
    said = answer(trace, step)
    reads = [_whole(trace, step, k) for k in completions]
    return sum(r == said for r in reads) / len(reads) if reads else 0.0


def _whole(trace: Trace, step: int, completion: int) -> str | None:
    given = trace.steps[trace.path(completion)[0]].text
    return (trace.read or read)(given + trace.text(completion))


def _second(trace: Trace, step: int) -> bool:
    return bool(trace.steps[trace.path(step)[0]].cites)
