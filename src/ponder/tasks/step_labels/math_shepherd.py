"""Math-Shepherd (Wang et al. 2024): question and steps in one text with a mark after each step, and the same text with
+ or - in the marks' places. A soft label is written as +, unless it is 0: some completion came out right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.errors import TaskError
from ponder.tasks.step_labels.labelled_trace import (
    add_chain,
    new_labelled_trace,
    parse_step_text,
    parse_text,
    probability_label,
    reasoning_paths,
    step_text,
)
from ponder.types import Score, Trace

STEP_MARK = "ки"
LABEL_SIGNS = {"+": Score(1.0), "-": Score(0.0)}
FIRST_STEP_PREFIX = "Step 1:"


def read(row: Mapping[str, Any], where: str) -> Trace:
    pieces, labels = _align_labels(parse_text(row["input"], "'input'"), parse_text(row["label"], "'label'"))
    question, first, first_step = pieces[0].rpartition(FIRST_STEP_PREFIX)
    if not first or not question.strip():
        raise TaskError(f"no {FIRST_STEP_PREFIX!r} after a question, where the steps begin")
    steps = [(first + first_step).strip(), *(parse_step_text(piece.strip(), "a step") for piece in pieces[1:])]
    rest = {k: v for k, v in row.items() if k not in ("input", "label")}
    return add_chain(new_labelled_trace(where, question.strip(), tags=rest), steps, labels)


def _align_labels(marked: str, signed: str) -> tuple[list[str], list[Score]]:
    """What stands between the marks, and the sign at each."""
    *pieces, after = marked.split(STEP_MARK)
    if after.strip():
        raise TaskError(f"the labels do not match the steps: {after.strip()[:40]!r} has no mark after it")
    if not pieces:
        raise TaskError(f"'input' has no mark {STEP_MARK!r}, so it has no steps")
    labels, at = [], 0
    for number, piece in enumerate(pieces, 1):
        sign = signed[at + len(piece) : at + len(piece) + 1]
        if not signed.startswith(piece, at) or sign not in LABEL_SIGNS:
            raise TaskError(f"the labels do not match the steps: 'label' differs from 'input' at step {number}")
        labels.append(LABEL_SIGNS[sign])
        at += len(piece) + 1
    if signed[at:].strip():
        raise TaskError(f"the labels do not match the steps: 'label' goes on after step {len(pieces)}")
    return pieces, labels


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """One row for each way down on which every step has a label: there is no sign for a step without one, so that a
    step on several ways has its sign in several rows. Steps without numbers get them: they say where the first
    begins."""
    for way in reasoning_paths(trace):
        labels = [probability_label(trace, i) for i in way]
        if None in labels:
            continue
        steps = [step_text(trace, i).strip() for i in way]
        if not steps[0].startswith(FIRST_STEP_PREFIX):
            steps = [f"Step {i}: {step}" for i, step in enumerate(steps, 1)]
        signs = ["+" if label else "-" for label in labels]
        if any(STEP_MARK in step for step in [trace.problem.question, *steps]):
            raise TaskError(f"{trace.problem.id}: a text holds the mark {STEP_MARK!r}: write another format")
        both = ([STEP_MARK] * len(steps), signs)
        marked, signed = (
            f"{trace.problem.question} " + "\n".join(f"{step} {mark}" for step, mark in zip(steps, marks, strict=True))
            for marks in both
        )
        rest = {k: v for k, v in trace.problem.tags.items() if k == "task"}
        yield {"input": marked, "label": signed, **rest}
