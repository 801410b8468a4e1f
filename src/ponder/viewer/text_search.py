"""Search in everything that a run wrote, within a time limit."""

from __future__ import annotations

import time
from typing import Any

from ponder.errors import RunError, UsageError
from ponder.types import Trace
from ponder.viewer.row_database import RowDatabase

SEARCH_SECONDS = 2.0
MAX_HITS = 1000
_AROUND_CHARS = 60


def search_traces(index: RowDatabase, wanted: str, limit: int, start: int = 1) -> dict[str, Any]:
    """Traces from number `start` on that hold a text, whatever the case of its letters; `next` is where to go on."""
    if not wanted.strip():
        raise UsageError("q is empty: give the text to search for")
    index.refresh()
    deadline, total = time.monotonic() + SEARCH_SECONDS, index.total
    hits: list[dict[str, Any]] = []
    number = start
    while number <= total and len(hits) < limit and time.monotonic() < deadline:
        try:
            step, trace = index.read(number)
        except RunError:
            number += 1
            continue
        if (snippet := find_snippet(trace, wanted)) is not None:
            hits.append({"number": number, "step": step, "snippet": snippet})
        number += 1
    return {"hits": hits, "scanned": number - start, "complete": number > total, "next": number}


def find_snippet(trace: Trace, wanted: str) -> str | None:
    """The first place of a text, with what stands around it."""
    low = wanted.lower()
    for step in trace.steps:
        at = step.text.lower().find(low)
        if at >= 0:
            start, end = max(0, at - _AROUND_CHARS), at + len(wanted) + _AROUND_CHARS
            before, after = "…" if start else "", "…" if end < len(step.text) else ""
            return before + step.text[start:end] + after
    return None
