"""Read and write files of labels. A bad row is named by its file and line."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ponder.errors import TaskError, UnknownName
from ponder.funnel import Funnel
from ponder.tables import parse
from ponder.tasks.steps import answers, omega, prm800k, shepherd, stepwise
from ponder.types import Trace

Row = Mapping[str, Any]
Make = Callable[[Row, str], Trace]  # from a row and where it stands


class Format(NamedTuple):
    columns: tuple[str, ...]  # that a row must have
    read: Make
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
RANKED = (("prompt", "ranked"), ("prompt", "completions", "scores"))  # either will do
NAMED = 3  # bad rows that a message names
WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)


class Rows(NamedTuple):
    """The rows of a file with their lines, and why others are none."""

    path: Path
    good: list[tuple[int, Row]]
    bad: list[tuple[int, str]]


def read(
    path: str | Path, format: str | None = None, skip_bad: bool = False, funnel: Funnel | None = None
) -> list[Trace]:
    """One trace for each row of a JSONL file. `skip_bad` goes on without rows that cannot be used, and counts them in
    the funnel, or warns where there is none."""
    rows = rows_of(path)
    return traces_of(rows, reader(rows, format), skip_bad, funnel)


def rows_of(path: str | Path) -> Rows:
    """What a file of labels or traces holds, before anybody knows of what kind."""
    try:
        lines = Path(path).read_text("utf-8-sig").split("\n")  # splitlines would cut inside a text at U+2028
    except OSError as why:
        raise TaskError(f"cannot read the labels in {path}: {why.strerror}") from None
    except UnicodeDecodeError as why:
        raise TaskError(f"cannot read the labels in {path}: it is not UTF-8 text ({why})") from None
    rows = Rows(Path(path), [], [])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse(line)
        except (ValueError, RecursionError) as why:
            rows.bad.append((number, f"is not JSON ({why})"))
            continue
        if isinstance(row, dict):
            rows.good.append((number, row))
        else:
            rows.bad.append((number, "is not a JSON object"))
    if not rows.good and not rows.bad:
        raise TaskError(f"{path} holds no rows: one JSON object per line is expected")
    return rows


def reader(rows: Rows, format: str | None = None) -> Make:
    """What makes traces of these rows: of a format, or of the first one that some row has the columns of."""
    if format is not None and format not in FORMATS:
        raise UnknownName("format of labels", format, FORMATS)
    fitting = (name for _, row in rows.good if (name := _fits(row)) is not None)
    name = format or next(fitting, None) or (guess(rows.good[0][1], rows.path) if rows.good else "stepwise")
    return lambda row, where: _trace(FORMATS[name], name, row, where)


def traces_of(rows: Rows, make: Make, skip_bad: bool = False, funnel: Funnel | None = None) -> list[Trace]:
    """A trace for each row; the bad ones are refused together, or left out."""
    found, bad = [], list(rows.bad)
    for number, row in rows.good:
        try:
            found.append(make(row, f"{rows.path}:{number}"))
        except TaskError as why:
            bad.append((number, str(why)))
    if bad:
        named = [f"{rows.path}, line {n}{'' if why.startswith('is ') else ':'} {why}" for n, why in sorted(bad)]
        said = "; ".join(named[:NAMED]) + (f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else "")
        if not found:
            raise TaskError(f"no row of {rows.path} can be used: {said}. Mend these rows")
        if not skip_bad:
            raise TaskError(f"{said}. Mend these rows, or go on without them: skip_bad (the flag --skip-bad)")
        if funnel is None:
            warnings.warn(f"{len(bad)} of {len(found) + len(bad)} rows were left out: {said}", stacklevel=3)
    if funnel is not None:
        funnel.add("rows that can be used", len(found), Counter(why for _, why in bad))
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


def guess(row: Row, path: str | Path) -> str:
    """The format whose columns a row has; where none has them all, an error with the nearest."""
    if (name := _fits(row)) is not None:
        return name
    keys = set(row)
    near = {(name, some): len(keys & set(some)) for name, f in FORMATS.items() for some in _columns(name, f)}
    most = max(near.values())
    lacking = [f"{name} also needs {', '.join(c for c in some if c not in keys)}"
               for (name, some), shared in near.items() if most and shared == most]  # fmt: skip
    known = "; ".join(f"{name}: {' or '.join(map(', '.join, _columns(name, f)))}" for name, f in FORMATS.items())
    raise TaskError(
        f"{path} has the columns {', '.join(sorted(keys)) or 'none'}, which are of no known format"
        f" ({'; '.join(lacking) or known})"
    )


def _columns(name: str, format: Format) -> tuple[tuple[str, ...], ...]:
    return RANKED if name == "ranked" else (format.columns,)


def _fits(row: Row) -> str | None:
    return next((n for n, f in FORMATS.items() if any(set(some) <= row.keys() for some in _columns(n, f))), None)


def _trace(format: Format, name: str, row: Row, where: str) -> Trace:
    if missing := [repr(column) for column in format.columns if column not in row]:
        which = f"columns {', '.join(missing)} are" if len(missing) > 1 else f"column {missing[0]} is"
        raise TaskError(f"the {which} missing, which {name} rows have; found {', '.join(sorted(row)) or 'none'}")
    try:
        return format.read(row, where)
    except WRONG as why:
        raise TaskError(f"malformed ({why!r})") from None
