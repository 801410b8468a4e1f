"""Filters applied again to what a run of `MakeProblems` made and solved: any of them can be left out.

The run must have kept everything: `Filters(keep_duplicates=True)`, `min_votes=0`, pass rates from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ponder.filter_report import FilterReport
from ponder.pipelines.make_problems import WRITING_STEP
from ponder.pipelines.problems.solve_rate import SolveRate
from ponder.runs import read_traces
from ponder.tasks.question_identity import bare_question, normalize_question
from ponder.tasks.synthetic import MATH_VERIFIER
from ponder.types import Problem, Trace

FilterName = Literal["duplicates", "contamination", "agreement", "difficulty"]
FILTER_NAMES: tuple[FilterName, ...] = get_args(FilterName)
MIN_VOTES = 2
PASS_RATES = 0.01, 0.95  # lowest and highest, as in MakeProblems
TRUSTED_TAGS = ("template", "given")  # the tag `source` of problems whose answers need no check


@dataclass(frozen=True)
class MadeProblem:
    """A problem, how often solvers gave its answer, and the texts that gave it."""

    problem: Problem
    rate: SolveRate
    solutions: tuple[str, ...]

    @property
    def question(self) -> str:
        return normalize_question(bare_question(self.problem))


def read_made_problems(run: str | Path) -> list[MadeProblem]:
    """What a run made, in order, with the attempts of all solvers."""
    rates: dict[str, SolveRate] = {}
    solutions: dict[str, dict[str, None]] = {}
    for step, trace in read_traces(run):
        if step > WRITING_STEP:
            rates.setdefault(trace.problem.id, SolveRate(trace.problem)).add_trace(trace)
            solutions.setdefault(trace.problem.id, {}).update(dict.fromkeys(_right_texts(trace)))
    return [MadeProblem(rate.problem, rate, tuple(solutions[id])) for id, rate in rates.items()]


def _right_texts(trace: Trace) -> list[str]:
    return [trace.text(i) for i in trace.answers() if trace.score(i, MATH_VERIFIER.name) == 1.0]


def apply_filters(
    made: Iterable[MadeProblem],
    filters: Collection[FilterName],
    held_out: Sequence[Problem],
    report: FilterReport | None = None,
) -> list[MadeProblem]:
    """The problems that pass these filters. Each is asked in turn; the report counts what it dropped."""
    report = report or FilterReport()
    tests = {normalize_question(bare_question(problem)) for problem in held_out}
    seen: set[str] = set()
    kept = []
    for one in made:
        passes = {
            "duplicates": one.question not in seen,
            "contamination": one.question not in tests,
            "agreement": one.problem.tags["source"] in TRUSTED_TAGS or _is_agreed(one.rate),
            "difficulty": one.rate.pass_rate is not None and PASS_RATES[0] <= one.rate.pass_rate <= PASS_RATES[1],
        }
        seen.add(one.question)
        if all(report.record(name, passes[name]) for name in FILTER_NAMES if name in filters):
            kept.append(one)
    return kept


def _is_agreed(rate: SolveRate) -> bool:
    return sum(rate.correct_by_solver) >= MIN_VOTES and rate.majority_agrees
