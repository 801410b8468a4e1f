"""A file to learn from: one JSON object per line, and beside it the funnel of what was left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ponder.errors import RunError
from ponder.filter_report import FilterReport

FILTER_REPORT_FILE = "funnel.json"  # the filter report of a run directory
HARVEST_FILE = "data.jsonl"  # the rows of a harvest in its run directory


def filter_report_lines(folder: Path) -> list[str]:
    """A run directory's funnel, for people."""
    kept = json.loads((folder / FILTER_REPORT_FILE).read_text(encoding="utf-8"))
    return FilterReport.from_json(kept).lines()


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Whole or not at all."""
    lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text("".join(lines), encoding="utf-8")
        beside.replace(path)
    except OSError as why:
        raise RunError(f"cannot write {path}: {why.strerror}; give another place for it") from None
