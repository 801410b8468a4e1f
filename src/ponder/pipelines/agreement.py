"""Do solvers agree with the answer that a problem claims, and how often do they find it?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ponder.tasks.made import ANSWERED
from ponder.types import Problem, Trace


@dataclass
class Tried:
    """What solvers made of one problem."""

    problem: Problem
    right: list[int] = field(default_factory=list)  # samples with its answer, by solver
    rival: list[int] = field(default_factory=list)  # samples with the commonest other answer
    decided: int = 0
    lengths: list[int] = field(default_factory=list)  # tokens of right solutions

    @property
    def rate(self) -> float | None:
        return sum(self.right) / self.decided if self.decided else None

    @property
    def agreed(self) -> bool:
        """With most solvers, no other answer is as frequent."""
        won = sum(right > rival for right, rival in zip(self.right, self.rival, strict=True))
        return 2 * won > len(self.right)

    def count(self, trace: Trace) -> None:
        """One more solver's attempts. What could not be judged is no attempt."""
        others: Counter[str] = Counter()
        right = 0
        for end in trace.answers():
            score = trace.score(end, ANSWERED.name)
            if score is None:
                continue
            self.decided += 1
            if score == 1.0:
                right += 1
                self.lengths.append(sum(len(trace.steps[i].token_ids) for i in trace.path(end)[1:]))
            elif (answer := ANSWERED.read(trace.text(end))) is not None:
                others[answer] += 1
        self.right.append(right)
        self.rival.append(max(others.values(), default=0))
