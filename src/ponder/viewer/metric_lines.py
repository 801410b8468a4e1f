"""Lines of `metrics.jsonl` as rows of numbers. Whatever a line holds, the result is finite numbers and None."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_METRICS = 500  # names of one run; a stranger's file may hold a new one in every line
MAX_NAME_CHARS = 200
_MAX_STEP = 1 << 53  # the largest whole number that JavaScript holds exactly
_NOT_METRICS = ("step", "record", "crc")
SECONDS, SECONDS_METRIC = "x/seconds", "step_time"  # a further x-axis: the sum of this metric
SUMMED_AXES = {"x/tokens": "num_tokens", "x/flops": "flops"}  # and those whose metric is a sum already
AXES = (*SUMMED_AXES, SECONDS)

_NUMBER = rb":(-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?)"
ROW_START = re.compile(rb'\{"(step|resumed)":(\d{1,15})[,}]')


@dataclass(slots=True)
class Columns:
    """Rows by step; `None` where a row lacks a metric."""

    seconds: float = 0.0  # of the rows so far, and before them
    steps: list[int] = field(default_factory=list)
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    damaged: int = 0  # lines that are no rows

    def add(self, row: dict[str, Any], names: Collection[str]) -> None:
        step = row.get("step")
        if type(step) is not int or not 0 <= step < _MAX_STEP:
            self.damaged += 1
            return
        count = len(self.steps)
        self.steps.append(step)
        values = {
            name: value if type(value) is float and value - value == 0.0 else _number(value)  # finite, as almost always
            for name, value in row.items()
            if name not in _NOT_METRICS
        }
        for axis, metric in SUMMED_AXES.items():
            if (amount := values.get(metric)) is not None:
                values[axis] = amount
        if (seconds := values.get(SECONDS_METRIC)) is not None:
            self.seconds += seconds
            values[SECONDS] = self.seconds
        if names:
            values = {name: value for name, value in values.items() if name in names or name.startswith("x/")}
        columns = self.columns
        for name, value in values.items():
            if name in columns:
                columns[name].append(value)
            elif value is not None and len(columns) < MAX_METRICS and len(name) <= MAX_NAME_CHARS:
                columns[name] = [*[None] * count, value]
        for column in columns.values():
            if len(column) == count:
                column.append(None)

    def take_back(self, step: int) -> None:
        """Forget the rows of this step and later ones: the run writes them again."""
        kept = [i for i, at in enumerate(self.steps) if at < step]
        self.steps = [self.steps[i] for i in kept]
        self.columns = {name: [column[i] for i in kept] for name, column in self.columns.items()}
        known = [value for value in self.columns.get(SECONDS, ()) if value is not None]
        self.seconds = known[-1] if known else 0.0


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A row or a mark; None for anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def resumed_from(row: dict[str, Any]) -> int | None:
    """The step from which on a run writes again, where this is such a mark."""
    step = row.get("resumed")
    return step if type(step) is int and "step" not in row else None


def read_rows(lines: Iterable[bytes], names: Collection[str] = (), seconds: float = 0.0) -> tuple[Columns, bool]:
    """The rows of these lines, and whether a mark took rows back."""
    out, marked = Columns(seconds), False
    for line in lines:
        if not line.strip():
            continue
        row = parse_line(line)
        if row is None:
            out.damaged += 1
        elif (step := resumed_from(row)) is not None:
            out.take_back(step)
            marked = True
        elif "lost" not in row:
            out.add(row, names)
    return out, marked


def named_value(name: str) -> re.Pattern[bytes]:
    """Finds the value of a metric in a line without parsing the line."""
    return re.compile(
        re.escape(json.dumps(name).encode()) + rb":(-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?)[,}]"
    )


def match_number(match: re.Match[bytes] | None) -> float:
    """The value that `named_value` matched; NaN where there is none, or none that is finite."""
    value = math.nan if match is None else float(match[1])
    return value if math.isfinite(value) else math.nan
