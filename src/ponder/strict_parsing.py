"""Strict CSV, JSON and Parquet: what a lenient parser accepts silently is an error here, with its line number.

A quote that is never closed would put all later rows into one cell. A row with a missing or extra cell would have its
values under the wrong names. Of two columns (or keys) with the same name only the last would remain.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ponder.errors import MissingExtra

ColumnFilter = Callable[[Sequence[str]], list[str]]  # of all column names, those to read

_CSV_OPEN_QUOTE = "unexpected end of data"  # the csv module's message for an open quote


class RowError(ValueError):
    """An error in a line of a file."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line, self.reason = line, reason


def parse_csv(text: str, delimiter: str = ",") -> list[tuple[int, dict[str, str] | RowError]]:
    """The rows under a header line, each with the number of its first line. Blank lines are skipped. A row with a wrong
    number of cells becomes a `RowError` in the list; an open quote makes all later rows unreliable, so it raises."""
    if "\0" in text:
        raise RowError(
            text[: text.index("\0")].count("\n") + 1, "it has a NUL byte, so the file is damaged or not text"
        )
    csv.field_size_limit(sys.maxsize)  # a cell may hold a whole completion
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    rows: list[tuple[int, dict[str, str] | RowError]] = []
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return rows
        except csv.Error as error:
            raise RowError(line, _explain_csv_error(str(error))) from None
        if len(cells) < 2 and not "".join(cells).strip():
            continue
        if names is None:
            names = _column_names(cells, line)
        elif len(cells) != len(names):
            wrong = f"{len(cells)} cells under {len(names)} names; is a quote or a comma missing?"
            rows.append((line, RowError(line, wrong)))
        else:
            rows.append((line, dict(zip(names, cells, strict=True))))


def _explain_csv_error(message: str) -> str:
    if message == _CSV_OPEN_QUOTE:
        return "a quote is opened in this row and never closed, which takes in all rows after it"
    if "expected after" in message:
        return 'after a closing quote a cell goes on: a quote is open, or one inside is not doubled ("")'
    return message


def _column_names(cells: Sequence[str], line: int) -> list[str]:
    if twice := [name for name in cells if cells.count(name) > 1]:
        raise RowError(line, f"the column {twice[0]!r} stands there twice: rename one of them")
    return list(cells)


def parse_json(text: str) -> Any:
    """Parse JSON. An object with a duplicate key is a ValueError, like any other error."""
    try:
        return json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except RecursionError:
        raise ValueError("too many brackets within brackets") from None


def _refuse_duplicate_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the key {key!r:.80} stands there twice")
        out[key] = value
    return out


def read_parquet(path: Path, keep: ColumnFilter | None = None) -> list[dict[str, Any]]:
    """The rows of a Parquet file. Raises ValueError where the file is damaged."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra(f"reading {path}", "pyarrow", "hf") from None
    try:
        columns = None if keep is None else keep(parquet.read_schema(path).names)
        return list(parquet.read_table(path, columns=columns).to_pylist())
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise ValueError(str(error)) from error
