"""ProcessBench (Zheng et al. 2024, arXiv:2412.06559): solutions in steps, and which step is the first wrong one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from ponder.errors import TaskError
from ponder.strict_parsing import parse_json
from ponder.tasks.step_labels.labelled_trace import add_chain, get_field, get_list, new_labelled_trace, parse_text
from ponder.types import Score, Trace

PARTS = ("gsm8k", "math", "olympiadbench", "omnimath")
NO_ERROR = -1  # the label of a solution in which all steps are right
AFTER_FIRST_ERROR = Score(None, "after the first wrong step nobody looked further")
FIRST_WRONG_TAG = "first_wrong"  # the tag with the label itself


def read_processbench(part: str) -> list[Trace]:
    """A part by its name, from processbench/ in the folder PONDER_DATA; or the path of a JSON or JSONL file.

    Steps before the first wrong one are labelled right, that one wrong.
    """
    path = Path(part)
    if part in PARTS:
        root = os.environ.get("PONDER_DATA")
        if not root:
            raise TaskError("PONDER_DATA is not set; set it to the folder that holds processbench/, or give a file")
        path = Path(root) / "processbench" / f"{part}.json"
    try:
        text = path.read_text("utf-8-sig")
        rows = (
            parse_json(text)
            if text.lstrip().startswith("[")
            else [parse_json(s) for s in text.split("\n") if s.strip()]
        )
    except OSError as why:
        raise TaskError(f"cannot read {path}: {why.strerror}; parts are {', '.join(PARTS)}") from None
    except ValueError as why:
        raise TaskError(f"{path} is not the JSON it should be ({why}); download it again") from None
    if not rows:
        raise TaskError(f"{path} holds no solutions")
    return [_trace(path, i, row) for i, row in enumerate(rows, 1)]


class ProcessBenchSolution(NamedTuple):
    """A row of the data set: a solution in steps, and the index of its first wrong step, or `NO_ERROR`."""

    problem: str
    steps: list[str]
    label: int


def parse_solution(row: Any) -> ProcessBenchSolution:
    """Raises TaskError where the row is malformed."""
    steps = [parse_text(s, "a step") for s in get_list(row, "steps", "the solution")]
    label, problem = get_field(row, "label", "the solution"), get_field(row, "problem", "the solution")
    if not steps:
        raise TaskError("the solution has no steps")
    if not isinstance(label, int) or isinstance(label, bool) or not NO_ERROR <= label < len(steps):
        raise TaskError(f"the label does not match the steps: {label!r} of {len(steps)} steps")
    return ProcessBenchSolution(parse_text(problem, "the problem"), steps, label)


def _trace(path: Path, number: int, row: Any) -> Trace:
    where = f"{path}, solution {number}"
    try:
        problem, steps, label = parse_solution(row)
        labels = [Score(1.0)] * len(steps)
        if label != NO_ERROR:
            labels = [Score(1.0)] * label + [Score(0.0)] + [AFTER_FIRST_ERROR] * (len(steps) - label - 1)
        tags = {FIRST_WRONG_TAG: label, "id": row.get("id"), "generator": row.get("generator")}
        return add_chain(new_labelled_trace(where, problem, None, tags), steps, labels)
    except TaskError as why:
        raise TaskError(f"{where}: {why}") from None
