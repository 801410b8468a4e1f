"""Runs paired by problem: accuracies and differences with their intervals from `ponder.measure`, and each problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ponder.measure.readers.attempts import ProblemAttempts, align_problems
from ponder.measure.statistics.compare_systems import Comparison, PairwiseResult, SystemResult, compare_systems
from ponder.viewer.plain_json import cut_text, finite, plain_json
from ponder.viewer.run_attempts import RunAttempts
from ponder.viewer.trace_facts import QUESTION_CHARS, SHORT_CHARS, last_line

MAX_PROBLEMS = 20_000


def compare_runs(runs: Sequence[RunAttempts]) -> dict[str, Any]:
    """Every two runs on the problems that all of them have."""
    systems = [run.attempts for run in runs]
    comparison = compare_systems(systems, common_only=True, all_pairs=True)
    return {
        "runs": [run.id for run in runs],
        "names": [system.name for system in systems],
        "counts": [len(system.groups) for system in systems],
        "problems": comparison.problems,
        "rule": comparison.rule,
        "systems": [system_json(system) for system in comparison.systems],
        "differences": [_pair_json(pair) for pair in comparison.pairs],
        "pairs": _problems(runs, comparison),
        "notes": [*comparison.notes, *dict.fromkeys(note for s in systems for note in s.reading_notes)],
    }


def system_json(system: SystemResult) -> dict[str, Any]:
    """Costs are per problem."""
    return {
        "accuracy": finite(system.accuracy.mean), "low": finite(system.accuracy.low),
        "high": finite(system.accuracy.high), "samples": list(system.samples), "undecided": system.undecided,
        "tokens": finite(system.tokens_per_problem), "flops": finite(system.flops_per_problem),
        "seconds": finite(system.seconds_per_problem), "dollars": finite(system.dollars_per_problem),
    }  # fmt: skip


def _pair_json(pair: PairwiseResult) -> dict[str, Any]:
    return {
        "first": pair.first, "second": pair.second, "difference": finite(pair.difference), "low": finite(pair.low),
        "high": finite(pair.high), "total": pair.total, "wins": pair.wins, "losses": pair.losses,
        "ties": pair.total - pair.wins - pair.losses, "test": pair.test, "p": finite(pair.p_value),
        "adjusted_p": finite(pair.adjusted_p_value), "problems_needed": pair.problems_needed,
    }  # fmt: skip


def _problems(runs: Sequence[RunAttempts], comparison: Comparison) -> list[dict[str, Any]]:
    """What each run's answer to each problem is worth, and where its trace is."""
    aligned, _ = align_problems([run.attempts for run in runs], common_only=True)
    out = []
    for i, group in enumerate(aligned[0].groups[:MAX_PROBLEMS]):
        results = [
            {"value": finite(system.values[i]), "answer": _answer(other.groups[i]),
             "number": run.numbers.get(group.problem)}
            for run, system, other in zip(runs, comparison.systems, aligned, strict=True)
        ]  # fmt: skip
        out.append({
            "problem_id": group.problem, "question": cut_text(group.question, QUESTION_CHARS),
            "gold": plain_json(group.gold), "results": results,
        })  # fmt: skip
    return out


def _answer(group: ProblemAttempts) -> str | None:
    """The answer that the system gave, or its first."""
    place = group.chosen if group.chosen is not None else 0
    if place >= group.size:
        return None
    if group.answers is not None and group.answers[place] is not None:
        return cut_text(str(group.answers[place]), SHORT_CHARS)
    return last_line(str(group.texts[place])) if group.texts is not None else None
