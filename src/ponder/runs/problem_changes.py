"""A run that goes on problem by problem goes on with the problems it began with.

An id is not enough: the file behind it may have another question or another answer now, and what was thought before
would pass for an answer to it. A trace keeps its problem whole, so nothing else needs keeping.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ponder.errors import RunError
from ponder.runs.run_dir import Run
from ponder.types import Problem, Trace

KEY_PARTS = ("id", "question", "answer", "tag")
ProblemKey = tuple[str, str, str, str]


def whole_problem_key(problem: Problem) -> ProblemKey:
    """What makes it that problem: its id, what is asked, what is right, and its tags, by which some judge."""
    return (
        problem.id,
        _canonical_json([dict(m) for m in problem.messages]),
        _canonical_json(problem.answer),
        _canonical_json(dict(problem.tags)),
    )


def check_problems_unchanged(run: Run, traces: Iterable[Trace], problems: Sequence[Problem]) -> None:
    """Raise where a run holds traces of problems that are others now, or are gone."""
    names = {whole_problem_key(p) for p in problems}
    others = [t.problem for t in traces if whole_problem_key(t.problem) not in names]
    if not others:
        return
    now, was = {p.id: whole_problem_key(p) for p in problems}, whole_problem_key(others[0])
    how = "is gone"
    if was[0] in now:
        how = f"has another {next(k for k, a, b in zip(KEY_PARTS, was, now[was[0]], strict=True) if a != b)}"
    count = len({p.id for p in others})
    raise RunError(
        f"the data changed since {run.folder} began: {count} of its problems {'is' if count == 1 else 'are'} not what "
        f"was asked then ({was[0]} {how}). Bring the old data back, or give another --run to ask them all as they are"
    )


def _canonical_json(value: object) -> str:
    """As a run directory keeps it: a tuple comes back as a list."""
    return json.dumps(value, sort_keys=True, default=str)
