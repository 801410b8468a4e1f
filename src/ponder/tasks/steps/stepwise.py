"""TRL's stepwise supervision: a prompt, its completions step by step, and a label for each, hard or soft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ponder.tasks.steps.labelled import (
    asked,
    chain,
    listed,
    matching,
    paths,
    prompt_of,
    said,
    share,
    share_of,
    text,
)
from ponder.types import Trace


def read(row: Mapping[str, Any], where: str) -> Trace:
    steps, labels = listed(row, "completions"), listed(row, "labels")
    matching(steps, labels)
    trace = asked(where, row["prompt"], row.get("answer"))
    return chain(trace, [text(step, "a completion") for step in steps], [share(label) for label in labels])


def write(trace: Trace) -> Iterator[dict[str, Any]]:
    """One row for each way down that has labels; a label of 0 or 1 becomes false or true, which TRL expects."""
    for way in paths(trace):
        labels = [share_of(trace, i) for i in way]
        if any(label is not None for label in labels):
            plain = [bool(label) if label in (0.0, 1.0) else label for label in labels]
            yield {"prompt": prompt_of(trace), "completions": [said(trace, i) for i in way], "labels": plain}
