"""Read and write files of labels. A bad row is named by its file and line."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ponder.errors import TaskError, UnknownName
from ponder.tasks.steps import answers, omega, prm800k, shepherd, stepwise
from ponder.types import Trace


class Format(NamedTuple):
    columns: tuple[str, ...]  # that a row must have
    read: Callable[[Mapping[str, Any], str], Trace]  # from a row and where it stands
    write: Callable[[Trace], Iterable[dict[str, Any]]]


FORMATS: dict[str, Format] = {
    "prm800k": Format(("question", "label"), prm800k.read, prm800k.write),
    "shepherd": Format(("input", "label"), shepherd.read, shepherd.write),
    "omega": Format(("question", "reasoning_steps"), omega.read, omega.write),
    "stepwise": Format(("prompt", "completions", "labels"), stepwise.read, stepwise.write),
    "pairs": Format(("prompt", "chosen", "rejected"), answers.read_pair, answers.write_pairs),
    "ranked": Format(("prompt",), answers.read_ranked, answers.write_ranked),
    "outcomes": Format(("prompt", "completion", "label"), answers.read_outcome, answers.write_outcomes),
}
NAMED = 3  # bad rows that a message names


def read(path: str | Path, format: str | None = None, skip_bad: bool = False) -> list[Trace]:
    """One trace for each row of a JSONL file. `skip_bad` goes on without rows that cannot be used, and says so."""
    rows = list(_rows(Path(path)))
    if not rows:
        raise TaskError(f"{path} holds no rows: one JSON object per line is expected")
    name = format or guess(rows[0][1], path)
    if name not in FORMATS:
        raise UnknownName("format of labels", name, FORMATS)
    found, bad = [], []
    for number, row in rows:
        try:
            found.append(_trace(FORMATS[name], name, row, f"{path}:{number}"))
        except TaskError as why:
            bad.append(f"{path}, line {number}: {why}")
    if bad:
        listed = "; ".join(bad[:NAMED]) + (f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else "")
        if not skip_bad or not found:
            raise TaskError(f"{listed}. Mend these rows, or go on without them: --skip-bad")
        warnings.warn(f"{len(bad)} of {len(rows)} rows were left out: {listed}", stacklevel=2)
    return found


def write(path: str | Path, traces: Sequence[Trace], format: str) -> int:
    """Every labelled trace in a format; returns how many rows that is."""
    if format not in FORMATS:
        raise UnknownName("format of labels", format, FORMATS)
    rows = [row for trace in traces for row in FORMATS[format].write(trace)]
    if not rows:
        raise TaskError(f"no trace has labels that the format {format!r} can hold: nothing is written to {path}")
    beside = Path(path).with_name(Path(path).name + ".new")
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    beside.replace(path)
    return len(rows)


def guess(row: Mapping[str, Any], path: str | Path) -> str:
    """The format whose columns a row has."""
    keys = set(row)
    for name, format in FORMATS.items():
        wanted = {*format.columns, *(["ranked"] if "ranked" in keys else ["completions", "scores"])}
        if set(format.columns) <= keys if name != "ranked" else wanted <= keys:
            return name
    more = {"ranked": " with ranked, or with completions, scores"}
    known = "; ".join(f"{name}: {', '.join(f.columns)}{more.get(name, '')}" for name, f in FORMATS.items())
    raise TaskError(
        f"{path} has the columns {', '.join(sorted(keys)) or 'none'}, which are of no known format ({known})"
    )


def _trace(format: Format, name: str, row: Mapping[str, Any], where: str) -> Trace:
    if missing := [column for column in format.columns if column not in row]:
        raise TaskError(f"the column {missing[0]!r} is missing, which {name} rows have; found {', '.join(sorted(row))}")
    try:
        return format.read(row, where)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as why:
        raise TaskError(f"malformed ({why!r})") from None


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        lines = path.read_text("utf-8").split("\n")  # splitlines would cut inside a text at U+2028
    except OSError as why:
        raise TaskError(f"cannot read the labels in {path}: {why.strerror}") from None
    except UnicodeDecodeError as why:
        raise TaskError(f"cannot read the labels in {path}: it is not UTF-8 text ({why})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as why:
            raise TaskError(f"{path}, line {number} is not JSON ({why})") from None
        if not isinstance(row, dict):
            raise TaskError(f"{path}, line {number} is not a JSON object")
        yield number, row
