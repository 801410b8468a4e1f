"""Evaluate: what a step of thought is worth to a search, by the guide's word, by rollouts, or by both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import BudgetExhausted, Interrupted, PonderError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.cut import Cut
from ponder.reason.operators.evaluate import evaluate
from ponder.reason.operators.generate import expand
from ponder.reason.operators.prune import prune, prune_undecided
from ponder.types import Sampling, Trace

WHOLE_ANSWER = Cut(tokens=1 << 30, max_step_tokens=1 << 30)  # a rollout has all that is left of the answer's tokens


def rollout_answers(trace: Trace, step: int) -> list[int]:
    """The answers that were written from a step to try it."""
    return [k for k in trace.children(step) if trace.steps[k].last and not trace.steps[k].pruned]


@dataclass(frozen=True, slots=True)
class StepValue:
    """(1 - mix) v + mix z, with v the guide's word on the step and z the mean of its word on n answers written from
    there (AlphaGo, Silver et al. 2016); v alone where n is 0, and for an answer.

    `two_player`: a score is in the eyes of who began the step, and the other side begins a rollout.
    """

    rollouts: int = 0
    rollout_weight: float = 1.0
    two_player: bool = False

    def value(self, trace: Trace, step: int, guide: str) -> float | None:
        """None where it is not known."""
        v = trace.score(step, guide)
        if not self.rollouts or trace.steps[step].done:
            return v
        ends = [s for k in rollout_answers(trace, step) if (s := trace.score(k, guide)) is not None]
        if not ends or (v is None and self.rollout_weight < 1):
            return None
        z = sum(ends) / len(ends) * (-1 if self.two_player else 1)
        return z if v is None or self.rollout_weight == 1 else (1 - self.rollout_weight) * v + self.rollout_weight * z

    async def evaluate(self, trace: Trace, steps: Sequence[int], policy: Policy, guide: Scorer, how: Sampling) -> None:
        """Write what rollouts are lacking and have all judged; a step whose worth stays unknown is closed."""
        onward = [i for i in steps if self.rollouts and not trace.steps[i].done]
        asked = [i for i in steps if not self.rollouts or self.rollout_weight < 1 or trace.steps[i].done]
        lacking = {
            i: n for i in onward if (n := self.rollouts - sum(trace.steps[k].last for k in trace.children(i))) > 0
        }
        if lacking:
            try:
                await expand(trace, [*lacking], policy, how, [*lacking.values()], cut=WHOLE_ANSWER, last=True)
            except (Interrupted, BudgetExhausted):
                raise
            except PonderError:  # each failed, and is closed with its reason
                pass
        ends = [k for i in onward for k in rollout_answers(trace, i)]
        await evaluate(trace, [i for i in (*asked, *ends) if trace.score(i, guide.name) is None], guide)
        prune_undecided(trace, [i for i in asked if not trace.steps[i].pruned], guide.name)
        for i in onward:
            if self.value(trace, i, guide.name) is None:
                why = [trace.steps[k].scores[guide.name].reason for k in rollout_answers(trace, i)]
                prune(trace, [i], f"no rollout was judged: {why[0] if why else 'none was written'}")
