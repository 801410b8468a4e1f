"""Beam search over steps, and beams that look ahead before they choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ponder.errors import Interrupted, PonderError, Spent, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators import evaluate, prune
from ponder.reason.operators.allocate import evenly, highest
from ponder.reason.operators.auto_cut import AutoCut
from ponder.reason.operators.generate import add, draw
from ponder.reason.operators.reduce import path_score
from ponder.reason.strategies.stepwise import AHEAD, Level, Stepwise
from ponder.reason.together import together
from ponder.types import Completion, Trace


@dataclass(frozen=True, slots=True)
class Beam(Stepwise):
    """Keep the n/m best steps, continue each by m (Snell et al. 2024, "Scaling LLM Test-Time Compute Optimally").

    An answer leaves the beam, and the n/m best of the rest are kept: so does Hugging Face's search-and-learn. Where
    fewer are left, the n continuations are shared out among them. The search ends when n answers are there or nothing
    is left to continue; they vote, weighted by their ranks.
    """

    n: int = 16
    m: int = 4
    distinct: bool = False  # of steps with the same tokens only the first can be kept (search-and-learn's filter)

    def __post_init__(self) -> None:
        Stepwise.__post_init__(self)
        divided(self.n, self.m, "a beam")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        def rule(level: Level) -> dict[int, int]:
            answers = dict.fromkeys(level.ended, 1)
            if len(level.finished) + len(answers) >= self.n:
                return answers
            live = _first(trace, level.live) if self.distinct else level.live
            kept = [live[i] for i in highest([level.rank[i] for i in live], self.n // self.m)]
            return answers | dict(zip(kept, evenly(self.n, len(kept)), strict=True))

        await self.grow(trace, policy, self.needed(scorer), self.n, rule)


@dataclass(frozen=True, slots=True)
class Lookahead(Beam):
    """A beam that rates a step by where k further, greedy steps lead (Snell et al. 2024). Those steps are written to
    the trace, pruned, and nobody goes on from them."""

    k: int = 3

    def __post_init__(self) -> None:
        Beam.__post_init__(self)
        if self.k < 0:
            raise UsageError(f"k is {self.k}; a search looks 0 or more steps ahead")
        if self.cut is None:
            raise UsageError("a search that looks steps ahead needs a cut: where does a step end?")

    async def rate(self, trace: Trace, steps: Sequence[int], policy: Policy, guide: Scorer | None) -> None:
        guide = self.needed(guide)
        new = [i for i in steps if guide.name not in trace.steps[_end(trace, i)].scores]
        for _ in range(self.k):
            tips = [(i, _end(trace, i)) for i in new]
            await self._roll(trace, [tip for i, tip in tips if self._goes_on(trace, i, tip)], policy)
        ends = {_end(trace, i) for i in new}
        await evaluate(trace, sorted(j for j in ends if guide.name not in trace.steps[j].scores), guide)
        for i in steps:
            if self.rank(trace, i, guide) is None:
                found = trace.steps[_end(trace, i)].scores.get(guide.name)
                prune(trace, [i], f"no score: {found.reason if found else guide.name + ' gave none'}")

    def rank(self, trace: Trace, step: int, guide: Scorer | None) -> float | None:
        return path_score(trace, _end(trace, step), self.needed(guide).name, self.reduce or self.by_default)

    def _goes_on(self, trace: Trace, step: int, end: int) -> bool:
        return not trace.steps[end].done and len(trace.path(end)) - len(trace.path(step)) < self.k

    async def _roll(self, trace: Trace, ends: Sequence[int], policy: Policy) -> None:
        """One greedy step from each; a branch that cannot go on is rated where it stands."""
        greedy, cut = replace(self.sampling, temperature=0.0), self.cut
        assert not isinstance(cut, AutoCut)

        async def one(end: int) -> list[Completion]:
            try:
                return await draw(trace, end, policy, greedy, 1, cut)
            except (Interrupted, Spent):
                raise
            except PonderError:
                return []

        found, spent = await together(*(one(end) for end in ends))
        for end, drawn in zip(ends, found, strict=True):
            for c in drawn or ():
                trace.steps[add(trace, end, c)].pruned = AHEAD
        if spent is not None:
            raise spent


def _end(trace: Trace, step: int) -> int:
    """Where looking ahead from a step has come to."""
    while ahead := [i for i in trace.children(step) if trace.steps[i].pruned == AHEAD]:
        step = ahead[0]
    return step


def _first(trace: Trace, steps: Iterable[int]) -> list[int]:
    """Steps without those whose whole path has the tokens of an earlier one."""
    paths: dict[bytes, int] = {}
    for i in steps:
        paths.setdefault(trace.token_ids(i).tobytes(), i)
    return list(paths.values())


def divided(n: int, m: int, what: str) -> None:
    if n < 1 or m < 1 or n % m:
        raise UsageError(f"n is {n} and m is {m}; {what} keeps n/m steps and continues each by m, so m must divide n")
