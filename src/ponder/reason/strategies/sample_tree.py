"""A tree of plain samples, without a guide or a choice: a group for tree-based training, which values each step."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators import expand
from ponder.reason.operators.auto_cut import AUTO_CUT, CutOrAuto, resolve_cut, warn_if_no_steps
from ponder.reason.operators.cut import WHOLE_ANSWER
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class SampleTree:
    """`widths[k]` continuations of every step at depth k; those of the last level are sampled to the end.

    `(4, 2)`: 4 first steps with 2 answers each. A branch that ends earlier stays as it is.
    """

    widths: tuple[int, ...] = (4, 2)
    sampling: Sampling = Sampling()
    cut: CutOrAuto = AUTO_CUT

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise UsageError(f"widths are {self.widths}; give at least one level, each with at least one continuation")

    def unused(self) -> dict[str, str]:
        return {"guide": "sample-tree only samples: beam-search and mcts use a guide"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        at = [0]
        cut = await resolve_cut(self.cut, trace, 0, policy, self.sampling) if len(self.widths) > 1 else None
        for level, width in enumerate(self.widths, 1):
            last = level == len(self.widths)
            missing = {i: n for i in at if (n := width - len(trace.children(i))) > 0}
            if missing:
                how = {"cut": WHOLE_ANSWER if last else cut, "last": last}
                await expand(trace, [*missing], policy, self.sampling, [*missing.values()], **how)  # type: ignore[arg-type]
            below = (k for i in at for k in trace.children(i))
            at = [k for k in below if not trace.steps[k].done and not trace.steps[k].pruned]
            if not at:
                break
        if len(self.widths) > 1:
            warn_if_no_steps(trace)
