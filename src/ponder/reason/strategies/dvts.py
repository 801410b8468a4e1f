"""Diverse verifier tree search: several narrow trees instead of one beam."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.protocols import Policy, Scorer
from ponder.reason.strategies.beam_search import check_beam_width
from ponder.reason.strategies.stepwise import SearchLevel, Stepwise, search_children
from ponder.types import Trace


@dataclass(frozen=True, slots=True)
class DVTS(Stepwise):
    """n/m independent subtrees, each of which keeps the best of its m = `beam_width` children (Beeching et al. 2024,
    "Scaling Test-Time Compute with Open Models").

    The first m steps after the prompt belong to the first subtree, and so on. A subtree ends when its best child is an
    answer; siblings that are answers count too, as in the authors' search-and-learn. Duplicates stay.
    """

    n: int = 16
    beam_width: int = 4

    def __post_init__(self) -> None:
        Stepwise.__post_init__(self)
        check_beam_width(self.n, self.beam_width, "each subtree")

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        def rule(level: SearchLevel) -> dict[int, int]:
            groups, counts = level.groups, dict[int, int]()
            if level.depth == 1:  # all subtrees start at the prompt
                first = search_children(trace, level.parents[0])
                groups = [
                    [i for i in first[a : a + self.beam_width] if i in level.rank]
                    for a in range(0, len(first), self.beam_width)
                ]
            for group in groups:
                best = max(group, key=lambda i: level.rank[i], default=None)
                if best in level.ended:
                    counts |= {i: 1 for i in group if i in level.ended}
                elif best is not None:
                    counts[best] = self.beam_width
            return counts

        await self.run_search(trace, policy, self.require_guide(scorer), self.n, rule)
