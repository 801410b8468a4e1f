"""Read and write files of labels. A bad row is named by its file and line."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ponder.atomic_write import write_atomically
from ponder.errors import TaskError, UnknownName
from ponder.filter_report import FilterReport
from ponder.strict_parsing import parse_json
from ponder.tasks.step_labels import answer_labels, math_shepherd, omegaprm, prm800k, trl_stepwise
from ponder.types import Trace

LabelRow = Mapping[str, Any]
LabelRowReader = Callable[[LabelRow, str], Trace]  # from a row and where it stands


class StepLabelFormat(NamedTuple):
    columns: tuple[str, ...]  # that a row must have
    read: LabelRowReader
    write: Callable[[Trace], Iterable[dict[str, Any]]]


STEP_LABEL_FORMATS: dict[str, StepLabelFormat] = {
    "prm800k": StepLabelFormat(("question", "label"), prm800k.read, prm800k.write),
    "shepherd": StepLabelFormat(("input", "label"), math_shepherd.read, math_shepherd.write),
    "omega": StepLabelFormat(("question", "reasoning_steps"), omegaprm.read, omegaprm.write),
    "stepwise": StepLabelFormat(("prompt", "completions", "labels"), trl_stepwise.read, trl_stepwise.write),
    "pairs": StepLabelFormat(("prompt", "chosen", "rejected"), answer_labels.read_pair, answer_labels.write_pairs),
    "ranked": StepLabelFormat(("prompt",), answer_labels.read_ranked, answer_labels.write_ranked),
    "outcomes": StepLabelFormat(
        ("prompt", "completion", "label"), answer_labels.read_outcome, answer_labels.write_outcomes
    ),
}
RANKED_COLUMNS = (("prompt", "ranked"), ("prompt", "completions", "scores"))  # either will do
MAX_LISTED_ROWS = 3  # bad rows that a message names
ROW_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)


class LabelRows(NamedTuple):
    """The valid rows of a file with their line numbers, and the reasons why others are invalid."""

    path: Path
    valid: list[tuple[int, LabelRow]]
    invalid: list[tuple[int, str]]


def read_labels(
    path: str | Path, format: str | None = None, skip_bad: bool = False, funnel: FilterReport | None = None
) -> list[Trace]:
    """One trace for each row of a JSONL file. `skip_bad` leaves out rows that cannot be used, and counts them in
    the funnel, or warns where there is none."""
    rows = parse_label_file(path)
    return rows_to_traces(rows, row_reader(rows, format), skip_bad, funnel)


def parse_label_file(path: str | Path) -> LabelRows:
    """The rows of a file of labels or traces, before its format is known."""
    try:
        lines = Path(path).read_text("utf-8-sig").split("\n")  # splitlines would cut inside a text at U+2028
    except OSError as why:
        raise TaskError(f"cannot read the labels in {path}: {why.strerror}") from None
    except UnicodeDecodeError as why:
        raise TaskError(f"cannot read the labels in {path}: it is not UTF-8 text ({why})") from None
    rows = LabelRows(Path(path), [], [])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as why:
            rows.invalid.append((number, f"is not JSON ({why})"))
            continue
        if isinstance(row, dict):
            rows.valid.append((number, row))
        else:
            rows.invalid.append((number, "is not a JSON object"))
    if not rows.valid and not rows.invalid:
        raise TaskError(f"{path} holds no rows: one JSON object per line is expected")
    return rows


def row_reader(rows: LabelRows, format: str | None = None) -> LabelRowReader:
    """The reader of a format; without one, of the first format whose columns some row has."""
    if format is not None and format not in STEP_LABEL_FORMATS:
        raise UnknownName("format of labels", format, STEP_LABEL_FORMATS)
    fitting = (name for _, row in rows.valid if (name := _matching_format(row)) is not None)
    name = format or next(fitting, None) or (detect_format(rows.valid[0][1], rows.path) if rows.valid else "stepwise")
    return lambda row, where: _trace(STEP_LABEL_FORMATS[name], name, row, where)


def rows_to_traces(
    rows: LabelRows, make: LabelRowReader, skip_bad: bool = False, funnel: FilterReport | None = None
) -> list[Trace]:
    """A trace for each row; the bad ones are refused together, or left out."""
    traces, bad = [], list(rows.invalid)
    for number, row in rows.valid:
        try:
            traces.append(make(row, f"{rows.path}:{number}"))
        except TaskError as why:
            bad.append((number, str(why)))
    if bad:
        named = [f"{rows.path}, line {n}{'' if why.startswith('is ') else ':'} {why}" for n, why in sorted(bad)]
        faults = "; ".join(named[:MAX_LISTED_ROWS]) + (
            f"; and {len(bad) - MAX_LISTED_ROWS} more" if len(bad) > MAX_LISTED_ROWS else ""
        )
        if not traces:
            raise TaskError(f"no row of {rows.path} can be used: {faults}. Fix these rows")
        if not skip_bad:
            raise TaskError(f"{faults}. Fix these rows, or leave them out: skip_bad (the flag --skip-bad)")
        if funnel is None:
            warnings.warn(f"{len(bad)} of {len(traces) + len(bad)} rows were left out: {faults}", stacklevel=3)
    if funnel is not None:
        funnel.add("rows that can be used", len(traces), Counter(why for _, why in bad))
    return traces


def write_labels(path: str | Path, traces: Sequence[Trace], format: str) -> int:
    """Every labelled trace in a format; returns how many rows that is."""
    if format not in STEP_LABEL_FORMATS:
        raise UnknownName("format of labels", format, STEP_LABEL_FORMATS)
    rows = [row for trace in traces for row in STEP_LABEL_FORMATS[format].write(trace)]
    if not rows:
        raise TaskError(f"no trace has labels that the format {format!r} can hold: nothing is written to {path}")
    write_atomically(Path(path), "".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def detect_format(row: LabelRow, path: str | Path) -> str:
    """The format whose columns a row has; where none has them all, an error with the nearest."""
    if (name := _matching_format(row)) is not None:
        return name
    keys = set(row)
    near = {
        (name, some): len(keys & set(some))
        for name, f in STEP_LABEL_FORMATS.items()
        for some in _required_columns(name, f)
    }
    most = max(near.values())
    missing = [f"{name} also needs {', '.join(c for c in some if c not in keys)}"
               for (name, some), shared in near.items() if most and shared == most]  # fmt: skip
    known = "; ".join(
        f"{name}: {' or '.join(map(', '.join, _required_columns(name, f)))}" for name, f in STEP_LABEL_FORMATS.items()
    )
    raise TaskError(
        f"{path} has the columns {', '.join(sorted(keys)) or 'none'}, which are of no known format"
        f" ({'; '.join(missing) or known})"
    )


def _required_columns(name: str, format: StepLabelFormat) -> tuple[tuple[str, ...], ...]:
    return RANKED_COLUMNS if name == "ranked" else (format.columns,)


def _matching_format(row: LabelRow) -> str | None:
    return next(
        (n for n, f in STEP_LABEL_FORMATS.items() if any(set(some) <= row.keys() for some in _required_columns(n, f))),
        None,
    )


def _trace(format: StepLabelFormat, name: str, row: LabelRow, where: str) -> Trace:
    if missing := [repr(column) for column in format.columns if column not in row]:
        named = f"columns {', '.join(missing)} are" if len(missing) > 1 else f"column {missing[0]} is"
        raise TaskError(f"the {named} missing, which {name} rows have; found {', '.join(sorted(row)) or 'none'}")
    try:
        return format.read(row, where)
    except ROW_ERRORS as why:
        raise TaskError(f"malformed ({why!r})") from None
