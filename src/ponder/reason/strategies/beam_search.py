"""Beam search over steps, and beam search with lookahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ponder.errors import UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators import evaluate, prune
from ponder.reason.operators.allocate import split_evenly, top_indices
from ponder.reason.operators.cut import Cut
from ponder.reason.operators.evaluate import path_score
from ponder.reason.operators.generate import add_completion, try_continue
from ponder.reason.strategies.stepwise import LOOKAHEAD_ONLY, SearchLevel, Stepwise
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class BeamSearch(Stepwise):
    """Keep the n/m best steps and continue each by m = `beam_width` (Snell et al. 2024, "Scaling LLM Test-Time Compute
    Optimally").

    A finished answer leaves the beam and the n/m best of the rest are kept, as in Hugging Face's search-and-learn. If
    fewer are left, they share the n continuations. The search ends with n answers or when nothing is left to continue;
    the answers vote, weighted by their scores.
    """

    n: int = 16
    beam_width: int = 4
    filter_duplicates: bool = False  # of paths with equal tokens only the first can be kept (as search-and-learn)

    def __post_init__(self) -> None:
        Stepwise.__post_init__(self)
        check_beam_width(self.n, self.beam_width, "a beam")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        def rule(level: SearchLevel) -> dict[int, int]:
            answers = dict.fromkeys(level.ended, 1)
            if len(level.finished) + len(answers) >= self.n:
                return answers
            live = _without_duplicate_paths(trace, level.live) if self.filter_duplicates else level.live
            beams = [live[i] for i in top_indices([level.rank[i] for i in live], self.n // self.beam_width)]
            return answers | dict(zip(beams, split_evenly(self.n, len(beams)), strict=True))

        await self.run_search(trace, policy, self.require_guide(scorer), self.n, rule)


@dataclass(frozen=True, slots=True)
class LookaheadBeamSearch(BeamSearch):
    """Beam search that scores a step after `lookahead_steps` further greedy steps (Snell et al. 2024). Those steps stay
    in the trace, pruned; the search does not continue from them."""

    lookahead_steps: int = 3

    def __post_init__(self) -> None:
        BeamSearch.__post_init__(self)
        if self.lookahead_steps < 0:
            raise UsageError(f"lookahead_steps is {self.lookahead_steps}; give 0 or more")
        if self.cut is None:
            raise UsageError("lookahead needs a cut that says where a step ends")

    async def rate(self, trace: Trace, steps: Sequence[int], policy: Policy, guide: Scorer | None) -> None:
        guide = self.require_guide(guide)
        new = [i for i in steps if guide.name not in trace.steps[_lookahead_end(trace, i)].scores]
        for _ in range(self.lookahead_steps):
            tips = [(i, _lookahead_end(trace, i)) for i in new]
            await self._extend_greedily(trace, [tip for i, tip in tips if self._needs_lookahead(trace, i, tip)], policy)
        ends = {_lookahead_end(trace, i) for i in new}
        await evaluate(trace, sorted(j for j in ends if guide.name not in trace.steps[j].scores), guide)
        for i in steps:
            if self.rank(trace, i, guide) is None:
                score = trace.steps[_lookahead_end(trace, i)].scores.get(guide.name)
                prune(trace, [i], f"no score: {score.reason if score else guide.name + ' gave none'}")

    def rank(self, trace: Trace, step: int, guide: Scorer | None) -> float | None:
        return path_score(
            trace, _lookahead_end(trace, step), self.require_guide(guide).name, self.reduce or self.default_reduce
        )

    def _needs_lookahead(self, trace: Trace, step: int, end: int) -> bool:
        return not trace.steps[end].done and len(trace.path(end)) - len(trace.path(step)) < self.lookahead_steps

    async def _extend_greedily(self, trace: Trace, ends: Sequence[int], policy: Policy) -> None:
        """One greedy step from each; a branch that cannot be extended is scored as it is."""
        greedy, cut = replace(self.sampling, temperature=0.0), self.cut
        assert cut is None or isinstance(cut, Cut)
        groups, spent = await gather_within_budget(*(try_continue(trace, end, policy, greedy, cut) for end in ends))
        for end, completions in zip(ends, groups, strict=True):
            for c in completions or ():
                trace.steps[add_completion(trace, end, c)].pruned = LOOKAHEAD_ONLY
        if spent is not None:
            raise spent


def _lookahead_end(trace: Trace, step: int) -> int:
    """The last lookahead step after a step; the step itself if there is none."""
    while ahead := [i for i in trace.children(step) if trace.steps[i].pruned == LOOKAHEAD_ONLY]:
        step = ahead[0]
    return step


def _without_duplicate_paths(trace: Trace, steps: Iterable[int]) -> list[int]:
    """Drop steps whose whole path has the same tokens as an earlier one."""
    paths: dict[bytes, int] = {}
    for i in steps:
        paths.setdefault(trace.token_ids(i).tobytes(), i)
    return list(paths.values())


def check_beam_width(n: int, beam_width: int, name: str) -> None:
    if n < 1 or beam_width < 1 or n % beam_width:
        raise UsageError(
            f"n is {n} and beam_width is {beam_width}; {name} keeps n/beam_width steps, each continued"
            " by beam_width, so beam_width must divide n"
        )
