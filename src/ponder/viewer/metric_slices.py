"""Metrics of a run by byte offset: a request costs what was appended since the last one.

`metrics.jsonl` is only appended to, so the offset behind the last whole line says exactly what a page has. A mark that
the run resumed takes rows back: then the answer holds all rows anew, with `reset`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from ponder.errors import PonderError
from ponder.viewer.metric_lines import (
    AXES,
    ROW_START,
    SECONDS,
    SUMMED_AXES,
    Columns,
    match_number,
    named_value,
    read_rows,
)
from ponder.viewer.plain_files import open_plain

METRICS_FILE = "metrics.jsonl"
MAX_SLICE_BYTES = 64 << 20  # read for one answer; `complete` says whether that was all
MAX_EXACT_BYTES = 1 << 20  # of larger files a preview reads some lines only
_MAX_LINE_BYTES = 1 << 20
_SAMPLE_BYTES = 4096  # read at once for one line of a preview
_CACHED_OFFSETS = 1000
MAX_PREVIEW_LINES, _MIN_POINTS = 20_000, 50  # of all runs together; of each

Answer = dict[str, Any]


class MetricSlices:
    """Slices of the metrics of any number of runs. Between requests it keeps two numbers per run."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], float] = {}  # by file and offset, the seconds of all rows before it

    def slice(self, folder: Path, after: int = 0, names: Collection[str] = ()) -> Answer:
        """The rows behind byte `after`, as columns."""
        path = folder / METRICS_FILE
        try:
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                after = after if after <= size else -1
                seconds = self._seconds.get((str(path), after)) if after else 0.0
                if seconds is not None:
                    lines, end = _read_lines(file, after)
                    rows, marked = read_rows(lines, names, seconds)
                    if not (after and marked):
                        return self._answer(path, rows, end, size, reset=False)
                lines, end = _read_lines(file, 0)
                rows, _ = read_rows(lines, names)
                return self._answer(path, rows, end, size, reset=True)
        except FileNotFoundError:
            return {"offset": 0, "reset": after > 0, "complete": True, "steps": [], "columns": {}}

    def _answer(self, path: Path, rows: Columns, end: int, size: int, reset: bool) -> Answer:
        if len(self._seconds) > _CACHED_OFFSETS:
            self._seconds.clear()
        self._seconds[str(path), end] = rows.seconds
        damaged = {"damaged": rows.damaged} if rows.damaged else {}
        complete = size - end < _MAX_LINE_BYTES
        return {
            "offset": end, "reset": reset, "complete": complete, "steps": rows.steps, "columns": rows.columns,
            **damaged,
        }  # fmt: skip


def _read_lines(file: IO[bytes], after: int) -> tuple[list[bytes], int]:
    """Whole lines from an offset on, and the offset behind them."""
    file.seek(after)
    data = file.read(MAX_SLICE_BYTES)
    end = data.rfind(b"\n") + 1
    return data[:end].split(b"\n")[:-1], after + end


def preview(folder: Path, names: Collection[str] = (), points: int = 400) -> Answer:
    """At most about `points` rows for a first picture: of each interval of steps the least and the largest value. Of a
    large file it reads evenly spread lines only, and says `sampled`."""
    try:
        with open_plain(folder / METRICS_FILE) as file:
            size = os.fstat(file.fileno()).st_size
            sampled = size > MAX_EXACT_BYTES
            lines = _sample_lines(file, size, points) if sampled else _read_lines(file, 0)[0]
    except FileNotFoundError:
        return {"sampled": False, "steps": [], "columns": {}}
    rows, _ = read_rows(lines, names) if not sampled or not names else (_read_named(lines, names), False)
    if sampled:
        rows = _in_order(rows)
        rows.columns.pop(SECONDS, None)  # a sum over all rows
    return {"sampled": sampled, **_thin_out(rows, max(2, points))}


def previews(folders: Mapping[str, Path], names: Collection[str], points: int) -> dict[str, Answer]:
    """The previews of several runs by id; of many runs each gets fewer points."""
    each = min(points, max(_MIN_POINTS, MAX_PREVIEW_LINES // max(1, len(folders))))
    out: dict[str, Answer] = {}
    for run, folder in folders.items():
        try:
            out[run] = preview(folder, names, each)
        except PonderError as why:
            out[run] = no_preview(str(why))
    return out


def no_preview(why: str) -> Answer:
    """In place of the preview of a run that cannot be read."""
    return {"sampled": False, "steps": [], "columns": {}, "error": why}


def _sample_lines(file: IO[bytes], size: int, points: int) -> list[bytes]:
    """So many lines, evenly spread over the file, the first and the last among them."""
    out: dict[int, bytes] = {}
    for i in range(points - 1):
        offset = i * size // (points - 1)
        file.seek(offset)
        data = file.read(_SAMPLE_BYTES)
        start = data.find(b"\n") + 1 if offset else 0
        end = data.find(b"\n", start)
        if end > start:
            out[offset + start] = data[start:end]
    offset = max(0, size - _SAMPLE_BYTES)
    file.seek(offset)
    data = file.read(_SAMPLE_BYTES)
    end = data.rfind(b"\n")
    start = data.rfind(b"\n", 0, max(0, end)) + 1
    if start:  # the last whole line
        out[offset + start] = data[start:end]
    return [line for _, line in sorted(out.items())]


def _read_named(lines: Sequence[bytes], names: Collection[str]) -> Columns:
    """Only these metrics, without parsing the rest of a line, which takes most of the time of many previews."""
    patterns = {name: named_value(name) for name in names}
    patterns |= {axis: named_value(metric) for axis, metric in SUMMED_AXES.items()}
    out = Columns(0.0, [], {name: [] for name in patterns})
    for line in lines:
        if (start := ROW_START.match(line)) is not None and start[1] == b"step":
            out.steps.append(int(start[2]))
            for name, pattern in patterns.items():
                value = match_number(pattern.search(line))
                out.columns[name].append(None if math.isnan(value) else value)
    out.columns = {name: column for name, column in out.columns.items() if any(v is not None for v in column)}
    return out


def _in_order(rows: Columns) -> Columns:
    """Without rows that a later one shows to be taken back."""
    kept: list[int] = []
    for i, step in enumerate(rows.steps):
        while kept and rows.steps[kept[-1]] >= step:
            kept.pop()
        kept.append(i)
    return Columns(0.0, [rows.steps[i] for i in kept], {n: [c[i] for i in kept] for n, c in rows.columns.items()})


def _thin_out(rows: Columns, points: int) -> Answer:
    """Two rows for each interval: its first and last step, with the least and the largest value as they came."""
    count = len(rows.steps)
    if count <= points:
        columns = {name: [_short(value) for value in column] for name, column in rows.columns.items()}
        return {"steps": rows.steps, "columns": columns}
    intervals = points // 2
    edges = [i * count // intervals for i in range(intervals + 1)]
    spans = list(pairwise(edges))
    steps = [rows.steps[i] for a, b in spans for i in (a, b - 1)]
    columns = {
        name: [value for a, b in spans for value in (_ends if name in AXES else _extremes)(column[a:b])]
        for name, column in rows.columns.items()
    }
    return {"steps": steps, "columns": columns}


def _ends(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    return values[0], values[-1]


def _extremes(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    low, high = min(known), max(known)
    return (_short(low), _short(high)) if known.index(low) <= known.index(high) else (_short(high), _short(low))


def _short(value: float | None) -> float | None:
    """Six digits are more than a picture shows."""
    return None if value is None else float(f"{value:.6g}")
