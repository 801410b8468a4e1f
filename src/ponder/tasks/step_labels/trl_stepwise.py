"""TRL's stepwise supervision: a prompt, its completions step by step, and a label for each, hard or soft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.tasks.step_labels.labelled_trace import (
    add_chain,
    check_same_length,
    get_list,
    new_labelled_trace,
    parse_label,
    parse_step_text,
    probability_label,
    prompt_for_file,
    reasoning_paths,
    step_text,
)
from ponder.types import Trace


def read(row: Mapping[str, Any], where: str) -> Trace:
    steps, labels = get_list(row, "completions"), get_list(row, "labels")
    check_same_length(steps, labels)
    trace = new_labelled_trace(where, row["prompt"], row.get("answer"))
    return add_chain(
        trace, [parse_step_text(step, "a completion") for step in steps], [parse_label(label) for label in labels]
    )


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """One row for each way down with labels that no row before it has: those that it shares with one are null. A label
    of 0 or 1 becomes false or true, which TRL expects."""
    written: set[int] = set()
    for way in reasoning_paths(trace):
        labels = [None if i in written else probability_label(trace, i) for i in way]
        if any(label is not None for label in labels):
            plain = [bool(label) if label in (0.0, 1.0) else label for label in labels]
            yield {"prompt": prompt_for_file(trace), "completions": [step_text(trace, i) for i in way], "labels": plain}
            written.update(way)
