"""Combine several scores into one reward. Each score stays on the step under its own name.

A sum or a gate with a gameable part (an LLM judge) is gameable too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.types import Score, Trace


@dataclass(frozen=True)
class WeightedSum:
    """The weighted sum of its parts, whose own scores it leaves on each step. Undecided if any part is.

    A part left out because it failed would be a 0 in disguise; there is no such option.
    """

    parts: tuple[tuple[Scorer, float], ...]
    verifier_name: str = field(default="", compare=False)  # of the part that is the task's verifier, if one is

    def __post_init__(self) -> None:
        names = [scorer.name for scorer, _ in self.parts]
        if not names:
            raise UsageError("a weighted reward has no parts; give it at least one (scorer, weight)")
        if twice := {n for n in names if names.count(n) > 1}:
            raise UsageError(f"two parts are named {min(twice)!r} and one would hide the other's score; leave one out")
        if self.name in names:
            raise UsageError(f"a part is named {self.name!r}, as the sum is; add its own parts instead")
        if bad := [w for _, w in self.parts if not math.isfinite(w)]:
            raise UsageError(f"a weight is {bad[0]}; it must be a finite number")

    @property
    def name(self) -> str:
        return "reward"

    @property
    def gameable(self) -> bool:
        return any(getattr(scorer, "gameable", False) for scorer, _ in self.parts)

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        columns = [await _score_and_record(scorer, trace, steps) for scorer, _ in self.parts]
        return [self._sum(row) for row in zip(*columns, strict=True)]

    def _sum(self, scores: tuple[Score, ...]) -> Score:
        total, reasons = 0.0, []
        for (scorer, weight), score in zip(self.parts, scores, strict=True):
            if score.value is None:
                return Score(None, f"{scorer.name} is undecided: {score.reason}")
            total += weight * score.value
            reasons.append(f"{weight:g} x {scorer.name} {score.value:g} ({score.reason})")
        return Score(total, " + ".join(reasons))


@dataclass(frozen=True)
class GatedReward:
    """The reward of an answer that passes the gate (a score of at least `min_score`); `reward_below` for one that does
    not.

    For example: no reward for a right answer in the wrong format. An answer that does not pass is not graded further.
    An undecided gate leaves the score undecided.
    """

    gate: Scorer
    reward: Scorer
    min_score: float = 1.0
    reward_below: float = 0.0

    def __post_init__(self) -> None:
        if self.gate.name == self.reward.name:
            raise UsageError(f"the gate and the reward are both named {self.gate.name!r}; one would hide the other")
        if not (math.isfinite(self.min_score) and math.isfinite(self.reward_below)):
            raise UsageError(
                f"min_score is {self.min_score} and reward_below is {self.reward_below}; both must be finite numbers"
            )

    @property
    def name(self) -> str:
        return f"gated_{self.reward.name}"

    @property
    def gameable(self) -> bool:
        return any(getattr(scorer, "gameable", False) for scorer in (self.gate, self.reward))

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        gates = dict(zip(steps, await _score_and_record(self.gate, trace, steps), strict=True))
        passed = [step for step, gate in gates.items() if gate.value is not None and gate.value >= self.min_score]
        rewards = dict(zip(passed, await _score_and_record(self.reward, trace, passed), strict=True)) if passed else {}
        return [rewards[step] if step in rewards else self._below_gate(gates[step]) for step in steps]

    def _below_gate(self, gate: Score) -> Score:
        if gate.value is None:
            return Score(None, f"{self.gate.name} is undecided: {gate.reason}")
        return Score(self.reward_below, f"{self.gate.name} {gate.value:g} is below {self.min_score:g} ({gate.reason})")


async def _score_and_record(scorer: Scorer, trace: Trace, steps: Sequence[int]) -> list[Score]:
    scores = await scorer(trace, steps)
    for step, score in zip(steps, scores, strict=True):
        trace.steps[step].scores[scorer.name] = score
    return scores
