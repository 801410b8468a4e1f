"""What the list of runs says about the metrics of one: kept up to date by reading what was appended.

Of each line only the step, the headline metrics and marks are read. A scan can be cut short: a folder with a hundred
long runs is listed at once, and the best values of the rest follow with the next requests.
"""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponder.errors import RunError
from ponder.measure.diagnostics.training_health import LOOKBACK_STEPS, START_STEPS, diagnose
from ponder.runs.run_summary import HEADLINE_METRICS
from ponder.viewer.metric_lines import (
    MAX_METRICS,
    ROW_START,
    SECONDS,
    SECONDS_METRIC,
    SUMMED_AXES,
    Columns,
    match_number,
    named_value,
    parse_line,
    read_rows,
)
from ponder.viewer.metric_slices import METRICS_FILE
from ponder.viewer.plain_files import open_plain

_CHUNK_BYTES = 1 << 20
_END_BYTES = 1 << 17  # of each end of the file, for findings
_MAX_MARKS = 200
_HEADLINES = {name: named_value(name) for name in HEADLINE_METRICS}
_BECAUSE_CHARS = 200
_EVAL_KEY = re.compile(rb'"eval/[^"]{1,100}":')


@dataclass(slots=True)
class MetricScan:
    """The state of a scan of one file. `offset` is behind the last line that was read."""

    inode: int = 0
    offset: int = 0
    steps: list[int] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)  # by headline metric, NaN where a row has none
    resumed: list[tuple[int, str]] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)  # steps with an evaluation

    def extend(self, folder: Path, seconds: float = math.inf) -> bool:
        """Read on for about so long. Returns whether all is read."""
        deadline = time.monotonic() + seconds
        try:
            with open_plain(folder / METRICS_FILE) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self.inode or status.st_size < self.offset:
                    self._restart(status.st_ino)
                while self.offset < status.st_size:
                    if time.monotonic() > deadline:
                        return False
                    file.seek(self.offset)
                    chunk = file.read(_CHUNK_BYTES)
                    end = chunk.rfind(b"\n") + 1
                    if not end:
                        return len(chunk) < _CHUNK_BYTES  # an unfinished line; one that is too long is not read
                    for line in chunk[:end].split(b"\n"):
                        self._add(line)
                    self.offset += end
        except (FileNotFoundError, RunError):
            self._restart(0)
        return True

    def _restart(self, inode: int) -> None:
        self.inode, self.offset = inode, 0
        self.steps, self.values, self.resumed, self.evaluated = [], {}, [], []

    def _add(self, line: bytes) -> None:
        start = ROW_START.match(line)
        if start is None or not line.endswith(b"}"):
            return
        step = int(start[2])
        if start[1] == b"resumed":
            self._take_back(step, line)
            return
        for name, pattern in _HEADLINES.items():
            match = pattern.search(line)
            column = self.values.get(name)
            if match is not None and column is None:
                column = self.values[name] = [math.nan] * len(self.steps)
            if column is not None:
                column.append(match_number(match))
        if len(self.evaluated) < _MAX_MARKS and _EVAL_KEY.search(line):
            self.evaluated.append(step)
        self.steps.append(step)

    def _take_back(self, step: int, line: bytes) -> None:
        kept = [i for i, at in enumerate(self.steps) if at < step]
        self.steps = [self.steps[i] for i in kept]
        self.values = {name: [column[i] for i in kept] for name, column in self.values.items()}
        self.evaluated = [at for at in self.evaluated if at < step]
        if len(self.resumed) < _MAX_MARKS:
            because = (parse_line(line) or {}).get("because", "")
            self.resumed.append((step, str(because)[:_BECAUSE_CHARS]))

    @property
    def metric(self) -> str | None:
        """The headline metric: the first that any row has."""
        return next((name for name in HEADLINE_METRICS if name in self.values), None)

    def headline(self) -> tuple[str | None, list[float]]:
        """The headline metric and its value at every step: what `run_summary.read_headline` reads."""
        name = self.metric
        return name, self.values[name] if name else [math.nan] * len(self.steps)

    def best_step(self) -> int | None:
        name = self.metric
        known = [(value, -step) for value, step in zip(self.values.get(name or "", ()), self.steps, strict=False)
                 if not math.isnan(value)]  # fmt: skip
        if not known or name is None:
            return None
        best = HEADLINE_METRICS[name](value for value, _ in known)
        return next(-step for value, step in known if value == best)


def read_ends(folder: Path) -> Columns:
    """The rows at the beginning and at the end of a file, as far as findings and names of metrics need them."""
    try:
        with open_plain(folder / METRICS_FILE) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_END_BYTES)
            lines = data[: data.rfind(b"\n") + 1].split(b"\n")
            if size > _END_BYTES:
                at = max(len(data), size - _END_BYTES)
                file.seek(at)
                tail = file.read(_END_BYTES)
                lines = lines[:START_STEPS] + tail[: tail.rfind(b"\n") + 1].split(b"\n")[1:][-LOOKBACK_STEPS - 10 :]
    except (FileNotFoundError, RunError):
        return Columns()
    return read_rows(lines)[0]


def findings(ends: Columns) -> list[dict[str, Any]]:
    """What ails the run, most severe first."""
    rows = [
        {name: value for name, column in ends.columns.items() if (value := column[i]) is not None}
        for i in range(len(ends.steps))
    ]
    return [{"name": f.name, "text": f.text, "severity": f.severity} for f in diagnose(rows)]


def axis_names(ends: Columns) -> list[str]:
    """Which x-axes the metrics of a run have."""
    axes = SUMMED_AXES | {SECONDS: SECONDS_METRIC}
    return ["step", *(axis.removeprefix("x/") for axis, metric in axes.items() if metric in ends.columns)]


def metric_names(ends: Columns) -> list[str]:
    return [name for name in ends.columns if not name.startswith("x/") and name != "time"][:MAX_METRICS]
