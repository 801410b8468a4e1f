"""How often solvers find the answer of a problem, and whether they agree on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ponder.tasks.synthetic import MATH_VERIFIER
from ponder.types import Problem, Trace


@dataclass
class SolveRate:
    """The attempts of all solvers at one problem."""

    problem: Problem
    correct_by_solver: list[int] = field(default_factory=list)  # samples with its answer, by solver
    runner_up_by_solver: list[int] = field(default_factory=list)  # samples with the commonest other answer
    num_judged: int = 0
    correct_lengths: list[int] = field(default_factory=list)  # tokens of right solutions

    @property
    def pass_rate(self) -> float | None:
        return sum(self.correct_by_solver) / self.num_judged if self.num_judged else None

    @property
    def majority_agrees(self) -> bool:
        """Whether, for most solvers, no other answer is as frequent as the problem's."""
        agreeing = sum(
            right > rival for right, rival in zip(self.correct_by_solver, self.runner_up_by_solver, strict=True)
        )
        return 2 * agreeing > len(self.correct_by_solver)

    def add_trace(self, trace: Trace) -> None:
        """Add the attempts of one more solver. An attempt without a verdict does not count."""
        others: Counter[str] = Counter()
        correct = 0
        for end in trace.answers():
            score = trace.score(end, MATH_VERIFIER.name)
            if score is None:
                continue
            self.num_judged += 1
            if score == 1.0:
                correct += 1
                self.correct_lengths.append(sum(len(trace.steps[i].token_ids) for i in trace.path(end)[1:]))
            elif (answer := MATH_VERIFIER.extract_answer(trace.text(end))) is not None:
                others[answer] += 1
        self.correct_by_solver.append(correct)
        self.runner_up_by_solver.append(max(others.values(), default=0))
