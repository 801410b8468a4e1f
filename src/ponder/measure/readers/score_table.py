"""A table of systems: one row each with a name, a score and a cost, and nothing of single problems.

Columns are found by their names: `name`, `system`, `model`, `method` or `strategy`; `score`, `accuracy` or `quality`;
`cost`, or what is paid in (`tokens`, `flops`, `seconds`, `dollars`). `low` and `high` are the ends of the score's
interval, and `family` says which rows make one curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.errors import UsageError
from ponder.measure.readers.column_aliases import COLUMN_ALIASES
from ponder.measure.readers.raw_files import SUFFIXES, load_data
from ponder.measure.readers.row_layout import normalized_name

NAME_COLUMNS = ("name", "system", "model", "method", "strategy")
SCORE_COLUMNS = ("score", "accuracy", "quality", "acc", "elo", "rating")
COST_COLUMNS = ("cost", "tokens", "flops", "compute", "seconds", "latency", "dollars", "price")


@dataclass(frozen=True, slots=True)
class ScorePoint:
    name: str
    score: float
    cost: float
    low: float = math.nan  # of the score's interval, where the table has one
    high: float = math.nan
    family: str = ""


@dataclass(frozen=True)
class ScoreTable:
    points: tuple[ScorePoint, ...]
    score_column: str
    cost_column: str

    @property
    def is_share(self) -> bool:
        """Do all scores lie between 0 and 1?"""
        return all(0 <= p.score <= 1 for p in self.points)


def read_score_tables(paths: Sequence[str]) -> ScoreTable | None:
    """The rows of all tables together; None where none of the paths is one."""
    tables = [read_score_table(path) for path in paths]
    known = [t for t in tables if t is not None]
    if not known:
        return None
    if len(known) < len(tables):
        alone = paths[tables.index(None)]
        raise UsageError(f"{alone} has single problems, and another source is a table of systems: give one kind")
    for other in known[1:]:
        if other.cost_column != known[0].cost_column:
            raise UsageError(
                f"one table pays in {known[0].cost_column}, another in {other.cost_column}: name the columns alike"
            )
    points = tuple(p for t in known for p in t.points)
    return ScoreTable(points, known[0].score_column, known[0].cost_column)


def read_score_table(path: str) -> ScoreTable | None:
    """None where the file is a log of problems, or no table."""
    file = Path(path)
    if not file.is_file() or not file.name.removesuffix(".gz").endswith(SUFFIXES):
        return None
    rows = load_data(file)
    if not (isinstance(rows, list) and rows and all(isinstance(r, dict) for r in rows)):
        return None
    columns = {normalized_name(c): c for row in rows for c in row}
    if set(columns) & set(COLUMN_ALIASES["id"]):
        return None
    roles = {role: _first(columns, names) for role, names in
             (("name", NAME_COLUMNS), ("score", SCORE_COLUMNS), ("cost", COST_COLUMNS))}  # fmt: skip
    if not all(roles.values()):
        return None
    family, low, high = (columns.get(c, "") for c in ("family", "low", "high"))
    points = tuple(
        ScorePoint(
            str(row.get(roles["name"], "")), _number(file, row, roles["score"]), _number(file, row, roles["cost"]),
            _number(file, row, low) if low else math.nan, _number(file, row, high) if high else math.nan,
            str(row.get(family, "")) if family else "",
        )
        for row in rows
    )  # fmt: skip
    if costless := [p.name for p in points if p.cost <= 0]:
        raise UsageError(f"{path}: the cost of {costless[0]!r} is not above 0; leave out what was not measured")
    return ScoreTable(points, roles["score"], roles["cost"])


def _first(columns: dict[str, str], names: Sequence[str]) -> str:
    return next((columns[n] for n in names if n in columns), "")


def _number(path: Path, row: dict[str, Any], column: str) -> float:
    try:
        value = float(row[column])
    except (KeyError, TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{path}: {column} is {row.get(column)!r} in a row; give a number, or leave the row out")
    return value
