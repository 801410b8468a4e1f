"""Run one query of a stranger on a small database: it can only read, and its time and memory are bounded.

Each query has a fresh database in memory, so that nothing that it does can be seen by another. What it may do is an
allow-list of SQLite's own actions and functions; functions that depend on the time or on chance are not on it, so that
a query always has the same result. SQLite's limits bound texts, and a count of its steps bounds the work.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[Sequence[Any]]

MAX_ROWS = 20
MAX_RESULT_CHARS = 1500
MAX_SQL_CHARS = 2000
MAX_VALUE_BYTES = 4000
STEPS_PER_CHECK = 1000
MAX_CHECKS = 100  # so at most 100,000 steps of SQLite's virtual machine

_FUNCTION_NAMES = """
abs avg coalesce count dense_rank group_concat iif ifnull instr length like lower ltrim max min nullif rank replace
round row_number rtrim substr substring sum total trim upper
"""
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
CATALOG = frozenset(("sqlite_master", "sqlite_schema"))  # of SQLite's own tables, those that may be read
_ACTIONS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE))
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL_CHARS * 4,
    sqlite3.SQLITE_LIMIT_COLUMN: 50,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 10_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 10,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[str, ...]  # each with its type, as in CREATE TABLE
    rows: Rows

    @property
    def schema(self) -> str:
        return f"CREATE TABLE {self.name} ({', '.join(self.columns)})"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows, at most `MAX_ROWS` of them, or what is wrong with the query."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    more: bool = False  # there are further rows
    error: str = ""

    def text(self) -> str:
        """The result as the policy reads it."""
        if self.error:
            return f"error: {self.error}"
        lines = [" | ".join(map(_cell_text, row)) for row in (self.columns, *self.rows)]
        lines += ["(no rows)"] if not self.rows else ["(more rows)"] if self.more else []
        text = "\n".join(lines)
        return text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}... (cut)"


def _cell_text(value: Any) -> str:
    return "NULL" if value is None else str(value)


def run_query(tables: Sequence[Table], sql: str) -> QueryResult:
    """Run one read-only query. It never raises."""
    if len(sql) > MAX_SQL_CHARS:
        return QueryResult(error=f"the query has more than {MAX_SQL_CHARS} characters")
    database = sqlite3.connect(":memory:", cached_statements=0)
    try:
        _fill(database, tables)
        _restrict(database)
        cursor = database.execute(sql)
        columns = tuple(column[0] for column in cursor.description or ())
        rows = cursor.fetchmany(MAX_ROWS + 1)
        return QueryResult(columns, tuple(map(tuple, rows[:MAX_ROWS])), len(rows) > MAX_ROWS)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        return QueryResult(error=_error_text(error))
    finally:
        database.close()


def _error_text(error: BaseException) -> str:
    text = str(error)
    if text == "interrupted":
        return "the query takes too many steps"
    if "not authorized" in text or "prohibited" in text:
        return f"{text}: only SELECT is allowed, with plain functions"
    return text[:200] or type(error).__name__


def _fill(database: sqlite3.Connection, tables: Sequence[Table]) -> None:
    database.execute("PRAGMA temp_store = MEMORY")
    for table in tables:
        database.execute(table.schema)
        marks = ", ".join("?" * len(table.columns))
        database.executemany(f"INSERT INTO {table.name} VALUES ({marks})", table.rows)
    database.commit()
    database.execute("PRAGMA query_only = ON")


def _restrict(database: sqlite3.Connection) -> None:
    for limit, value in _LIMITS.items():
        database.setlimit(limit, value)
    checks = itertools.count(1)
    database.set_progress_handler(lambda: int(next(checks) > MAX_CHECKS), STEPS_PER_CHECK)
    database.set_authorizer(_authorize)


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if (second or "").lower() in FUNCTIONS else sqlite3.SQLITE_DENY
    name = (first or "").lower()
    if action == sqlite3.SQLITE_READ and name.startswith(("sqlite_", "pragma_")) and name not in CATALOG:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ACTIONS else sqlite3.SQLITE_DENY
