"""Held-out problems stay out of training data: otherwise a model is measured on what it has learned from.

The problems of an evaluation are known by its job, and those of a task by their ids, which say `test` after the task's
name. A problem that was made from another names it as a parent.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ponder.errors import TaskError
from ponder.filter_report import FilterReport
from ponder.runs import read_job, read_traces
from ponder.types import Problem, Trace

EVALUATE_TYPE = "ponder.pipelines.evaluate:Evaluate"  # by name, since reading traces need not import what solves
TRAINING_ONLY_STAGE = "of training problems"
HELD_OUT_REASON = "held out, to measure on"
_TEST_ID = re.compile(r"[^/]+/test/")


def is_held_out(problem: Problem) -> bool:
    """Whether a problem is one of a task's test problems, or was made from one."""
    parents = problem.tags.get("parents")
    return any(map(_is_test_id, (problem.id, *(parents if isinstance(parents, list | tuple) else ()))))


def _is_test_id(id: Any) -> bool:
    return isinstance(id, str) and _TEST_ID.match(id) is not None


def is_evaluation_run(run: str) -> bool:
    """Whether a run is an evaluation, or a job with `include_held_out`, which takes an evaluation's traces."""
    job = read_job(run)
    return isinstance(job, dict) and (job.get("is") == EVALUATE_TYPE or job.get("include_held_out") is True)


def traces_with_split(run: str) -> Iterator[tuple[int, Trace, bool]]:
    """A run's traces with their steps, and whether each is of a held-out problem."""
    is_evaluation = is_evaluation_run(run)
    for at, trace in read_traces(run):
        yield at, trace, is_evaluation or is_held_out(trace.problem)


def keep_for_training(is_held_out: bool, report: FilterReport, include: bool = False) -> bool:
    """Whether to learn from a trace. Held-out ones are counted and left out, unless `include`."""
    return include or report.record(TRAINING_ONLY_STAGE, not is_held_out, HELD_OUT_REASON)


def training_traces(run: str, report: FilterReport, include: bool = False) -> list[Trace]:
    """The traces of a run that may be learned from."""
    return [trace for _, trace, held_out in traces_with_split(run) if keep_for_training(held_out, report, include)]


def raise_if_all_held_out(report: FilterReport) -> None:
    """Raise if all traces are held out."""
    if report.stages.get(TRAINING_ONLY_STAGE) == 0:
        dropped = report.dropped[TRAINING_ONLY_STAGE].total()
        raise TaskError(
            f"all {dropped:,} traces are of problems that are held out to measure on: a model that learns from them "
            "cannot be measured on them any more. Give runs on training problems, as `ponder train` and `ponder "
            "label` leave them, or take these all the same with include_held_out (the flag --include-held-out)"
        )


def row_is_held_out(row: Any) -> bool:
    """Whether a harvested row says that it came from a held-out problem."""
    lineage = row.get("from") if isinstance(row, Mapping) else None
    return isinstance(lineage, Mapping) and (lineage.get("held_out") is True or _is_test_id(lineage.get("problem")))


def warn_held_out(held: Sequence[bool], place: str) -> None:
    """Warn if some rows of training data came from held-out problems."""
    if any(held):
        warnings.warn(
            f"{sum(held):,} of {len(held):,} rows of {place} came from problems that are held out to measure on: an"
            " evaluation on those will show what was remembered, not what was learned",
            stacklevel=3,
        )
