"""Math-Shepherd (Wang et al. 2024): question and steps in one text with a mark after each step, and the same text with
+ or - in the marks' places. A soft label is written as +, unless it is 0: some completion came out right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.errors import TaskError
from ponder.tasks.steps.labelled import asked, chain, paths, said, share_of, text, worded
from ponder.types import Score, Trace

MARK = "ки"
SIGNS = {"+": Score(1.0), "-": Score(0.0)}
FIRST = "Step 1:"


def read(row: Mapping[str, Any], where: str) -> Trace:
    pieces, labels = _aligned(text(row["input"], "'input'"), text(row["label"], "'label'"))
    question, first, begun = pieces[0].rpartition(FIRST)
    if not first or not question.strip():
        raise TaskError(f"no {FIRST!r} after a question, where the steps begin")
    steps = [(first + begun).strip(), *(worded(piece.strip(), "a step") for piece in pieces[1:])]
    rest = {k: v for k, v in row.items() if k not in ("input", "label")}
    return chain(asked(where, question.strip(), tags=rest), steps, labels)


def _aligned(marked: str, signed: str) -> tuple[list[str], list[Score]]:
    """What stands between the marks, and the sign at each."""
    *pieces, after = marked.split(MARK)
    if after.strip():
        raise TaskError(f"the labels do not match the steps: {after.strip()[:40]!r} has no mark after it")
    if not pieces:
        raise TaskError(f"'input' has no mark {MARK!r}, so it has no steps")
    labels, at = [], 0
    for number, piece in enumerate(pieces, 1):
        sign = signed[at + len(piece) : at + len(piece) + 1]
        if not signed.startswith(piece, at) or sign not in SIGNS:
            raise TaskError(f"the labels do not match the steps: 'label' differs from 'input' at step {number}")
        labels.append(SIGNS[sign])
        at += len(piece) + 1
    if signed[at:].strip():
        raise TaskError(f"the labels do not match the steps: 'label' goes on after step {len(pieces)}")
    return pieces, labels


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """One row for each way down on which every step has a label: there is no sign for a step without one, so that a
    step on several ways has its sign in several rows. Steps without numbers get them: they say where the first
    begins."""
    for way in paths(trace):
        labels = [share_of(trace, i) for i in way]
        if None in labels:
            continue
        steps = [said(trace, i).strip() for i in way]
        if not steps[0].startswith(FIRST):
            steps = [f"Step {i}: {step}" for i, step in enumerate(steps, 1)]
        signs = ["+" if label else "-" for label in labels]
        if any(MARK in step for step in [trace.problem.question, *steps]):
            raise TaskError(f"{trace.problem.id}: a text holds the mark {MARK!r}: write another format")
        both = ([MARK] * len(steps), signs)
        marked, signed = (
            f"{trace.problem.question} " + "\n".join(f"{step} {mark}" for step, mark in zip(steps, marks, strict=True))
            for marks in both
        )
        rest = {k: v for k, v in trace.problem.tags.items() if k == "task"}
        yield {"input": marked, "label": signed, **rest}
