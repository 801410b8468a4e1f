"""Training data as a file: one JSON object per line, and the filter report that says what was left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ponder.atomic_write import write_atomically
from ponder.errors import RunError
from ponder.filter_report import FilterReport

FILTER_REPORT_FILE = "filter_report.json"  # the filter report of a run directory
HARVEST_FILE = "data.jsonl"  # the rows of a harvest in its run directory


def filter_report_lines(folder: Path) -> list[str]:
    """The filter report of a run directory, for people."""
    return read_filter_report(folder).lines()


def read_filter_report(folder: Path) -> FilterReport:
    """The filter report of a run directory."""
    return FilterReport.from_json(json.loads((folder / FILTER_REPORT_FILE).read_text(encoding="utf-8")))


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows atomically."""
    lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
    try:
        write_atomically(path, "".join(lines))
    except OSError as why:
        raise RunError(f"cannot write {path}: {why.strerror}; give another place for it") from None
