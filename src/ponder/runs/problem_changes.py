"""A run that resumes problem by problem resumes with the problems that it began with.

The id of a problem is not enough: the file behind it may hold another question or answer now, and the run would take
its old trace for an answer to the new one. A trace stores its whole problem, so the run needs to store nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ponder.errors import RunError
from ponder.runs.run_dir import Run
from ponder.types import Problem, ProblemKey, Trace, problem_key

_PART_NAMES = ProblemKey("id", "question", "answer", "tag")


def check_problems_unchanged(run: Run, traces: Iterable[Trace], problems: Sequence[Problem]) -> None:
    """Raise if a run holds traces of problems that have changed since, or are gone."""
    keys = {problem_key(p) for p in problems}
    changed = [t.problem for t in traces if problem_key(t.problem) not in keys]
    if not changed:
        return
    now, before = {key.id: key for key in keys}, problem_key(changed[0])
    how = "is gone"
    if before.id in now:
        parts = zip(_PART_NAMES, before, now[before.id], strict=True)
        how = f"has another {next(name for name, old, new in parts if old != new)}"
    count = len({p.id for p in changed})
    raise RunError(
        f"the data changed since {run.folder} began: {count} of its problems {'is' if count == 1 else 'are'} not what "
        f"was asked then ({before.id} {how}). "
        "Bring the old data back, or give another --run to ask them all as they are"
    )
