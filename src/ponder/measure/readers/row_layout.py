"""Convert the data of a log, whatever its shape, to rows: one row per problem (wide) or per attempt (long).

    [{...}, {...}]                    rows as they are
    {"a": [...], "b": [...]}          columns, where the names are those of columns
    {"id-1": [...], "id-2": [...]}    problems by their id, each with a list of attempts
    {"id-1": {...}, "id-2": {...}}    problems by their id
    {"model-1": [{"id": ...}, ...]}   systems by their name, where their rows have ids of their own
    {"results": [...], "mean": 0.5}   any of these, under a name beside a summary
    [[1, 0, 1], [0, 0, 0]]            a matrix, one line per problem

Then nested objects become columns with dotted names, a list of objects a column of lists, and numbered columns
(sample_0, sample_1, ...) one column of lists.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ponder.errors import UsageError

LogRow = dict[str, Any]

ID_COLUMN, VALUES_COLUMN, SYSTEM_COLUMN = "id", "values", "system"  # names for what has none in the file

_NUMBERED = re.compile(r"(.*?)[ _.\-\[(#]?(\d{1,6})[\])]?")
ATTEMPT_WORDS = ("attempt", "sample", "completion", "generation", "rollout", "trial", "repeat", "run")  # numbered, too
MAX_SYSTEM_LISTS = 16  # lists that may be systems
MAX_NESTING = 3  # levels of objects within objects that become columns


def to_rows(data: Any, known: frozenset[str], named_columns: frozenset[str] = frozenset()) -> list[LogRow]:
    """`known`: names that columns have, which tell a table of columns from problems by id. `asked`: columns that the
    user names, which stay as they are."""
    rows = _rows(data, known, named_columns)
    if not rows:
        raise UsageError("the log is empty: it has no rows")
    return _join_numbered_columns([_flatten(row) for row in rows], named_columns)


def _rows(data: Any, known: frozenset[str], named_columns: frozenset[str]) -> list[LogRow]:
    if isinstance(data, list):
        if all(isinstance(row, Mapping) for row in data):
            return [dict(row) for row in data]
        if all(isinstance(row, list) for row in data):
            return [{ID_COLUMN: str(i), VALUES_COLUMN: row} for i, row in enumerate(data)]
        if all(_scalar(row) for row in data):
            return [{ID_COLUMN: str(i), VALUES_COLUMN: row} for i, row in enumerate(data)]
        raise UsageError("the log is a list of different kinds of things; give one with one kind of row")
    if not isinstance(data, Mapping) or not data:
        raise UsageError(f"the log holds {type(data).__name__}, which has no rows")
    return _rows_from_object(dict(data), known, named_columns)


def _rows_from_object(data: dict[str, Any], known: frozenset[str], named_columns: frozenset[str]) -> list[LogRow]:
    named = [k for k in data if normalized_name(k) in known or k in named_columns]
    lists = {k: v for k, v in data.items() if isinstance(v, list)}
    if named and len(lists) == len(data) and len({len(v) for v in lists.values()}) == 1:
        return [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]
    if not named and len(lists) == len(data):
        if len(data) == 1 and not any(_scalar(v) for v in next(iter(lists.values()))):
            return _rows(
                next(iter(lists.values())), known, named_columns
            )  # a table under a name, rather than one problem
        if all(_has_problem_ids(v) for v in lists.values()):
            return [{SYSTEM_COLUMN: k, **row} for k, v in lists.items() for row in v]
        if ID_COLUMN not in named_columns:
            _refuse_ambiguous_systems(lists)
        return [{ID_COLUMN: k, VALUES_COLUMN: v} for k, v in lists.items()]
    inner = {k: v for k, v in data.items() if isinstance(v, Mapping) and v}
    if not named and len(inner) == len(data) and not _parallel_columns(inner):
        return [{ID_COLUMN: k, **v} for k, v in inner.items()]
    if not named and all(_scalar(v) for v in data.values()):
        return [{ID_COLUMN: k, VALUES_COLUMN: v} for k, v in data.items()]
    return _rows_under_key(data, inner, known, named_columns)


def _rows_under_key(
    data: dict[str, Any], inner: dict[str, Any], known: frozenset[str], named_columns: frozenset[str]
) -> list[LogRow]:
    """Beside a summary: the one long thing, or several that speak of the same problems."""
    tables = {k: v for k, v in data.items() if isinstance(v, list) and v and all(isinstance(r, Mapping) for r in v)}
    if len(tables) == 1:
        return [dict(r) for r in next(iter(tables.values()))]
    if len(tables) > 1:
        raise UsageError(f"the log has several tables ({', '.join(tables)}); give one of them as a file of its own")
    if together := _parallel_columns(inner):
        problems = next(iter(together.values()))
        return [{ID_COLUMN: p, **{k: v[p] for k, v in together.items()}} for p in problems]
    if len(inner) == 1:
        return _rows_from_object(dict(next(iter(inner.values()))), known, named_columns)
    raise UsageError(
        f"no table was found in the log: it is an object with {', '.join(map(repr, list(data)[:6]))}; give rows (a list"
        " of objects), columns, or problems by id"
    )


def _refuse_ambiguous_systems(lists: Mapping[str, Sequence[Any]]) -> None:
    """A few names, each with a long list of verdicts, may be systems with one verdict for each problem."""
    sizes = {len(v) for v in lists.values()}
    alike = len({re.sub(r"\d+", "", str(k)) for k in lists}) == 1  # ids count: p1, p2; names differ otherwise, too
    plain = all(_scalar(x) for v in lists.values() for x in v)
    if 1 < len(lists) <= MAX_SYSTEM_LISTS and len(sizes) == 1 and min(sizes) > 2 * len(lists) and plain and not alike:
        keys = ",".join(map(str, lists))
        raise UsageError(
            f"are {keys} systems, each with a verdict on every problem, or problems, each with its attempts? Say"
            f" --column systems={keys}, or --column id={ID_COLUMN}"
        )


def _has_problem_ids(rows: Sequence[Any]) -> bool:
    """Rows of different problems, by an id of their own: what they stand under is then no problem."""
    if len(rows) < 2 or not all(isinstance(row, Mapping) for row in rows):
        return False
    for key in rows[0]:
        stem, _, kind = normalized_name(key).rpartition("_")
        ids = {str(row.get(key)) for row in rows}
        counting = {str(i) for i in range(len(rows) + 1)}
        if (
            kind in ("id", "idx", "index")
            and stem not in ATTEMPT_WORDS
            and len(ids) > 1
            and (stem or not ids <= counting)
        ):
            return True
    return False


def _parallel_columns(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Objects that have the same many keys: columns, each by problem. Few keys are just fields."""
    if len(inner) < 2:
        return {}
    keys = [set(v) for v in inner.values()]
    same = all(k == keys[0] for k in keys[1:]) and len(keys[0]) > 2
    like_problems = all(not isinstance(x, Mapping) for v in inner.values() for x in v.values())
    return dict(inner) if same and like_problems and len(keys[0]) > 4 * len(inner) else {}


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _flatten(row: Mapping[str, Any], prefix: str = "", deep: int = MAX_NESTING) -> LogRow:
    if not any(isinstance(v, dict | list) for v in row.values()) and not prefix:
        return dict(row)
    out: LogRow = {}
    for key, value in row.items():
        if isinstance(value, list) and value and all(_numbered(v) for v in value):
            value = [v[1] for v in value]
        if isinstance(value, Mapping) and value and deep:
            out |= _flatten(value, f"{prefix}{key}.", deep - 1)
        elif _messages(value):
            out[f"{prefix}{key}"] = "\n".join(str(m["content"]) for m in value)
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value) and deep:
            fields = dict.fromkeys(f for v in value for f in v)
            out |= _flatten({str(f): [v.get(f) for v in value] for f in fields}, f"{prefix}{key}.", deep - 1)
        else:
            out[f"{prefix}{key}"] = value
    return out


def _numbered(value: Any) -> bool:
    """[3, {"passed": true}]: an attempt with its number."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], Mapping)


def _messages(value: Any) -> bool:
    """A conversation, which is one text to us."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, Mapping) and "role" in m and "content" in m for m in value)
    )


def _join_numbered_columns(rows: list[LogRow], named_columns: frozenset[str]) -> list[LogRow]:
    """Numbered columns as one column of lists, where the numbers begin at 0 or 1 and none is left out."""
    columns = column_names(rows)
    stems: dict[str, dict[int, str]] = defaultdict(dict)
    for column in columns:
        if (match := _NUMBERED.fullmatch(column)) and not match[1].endswith("@"):  # pass@1 and pass@2 are no attempts
            stems[match[1]][int(match[2])] = column
    series = {
        stem: [by[i] for i in sorted(by)]
        for stem, by in stems.items()
        if _is_consecutive(by) and not named_columns & set(by.values())
    }
    taken = {c: stem for stem, members in series.items() for c in members}
    if not taken:
        return rows
    out = []
    for row in rows:
        fresh = {c: v for c, v in row.items() if c not in taken}
        for stem, members in series.items():
            label = stem.rstrip(" _.-") or VALUES_COLUMN
            fresh[label if label not in columns else f"{label}*"] = [row.get(c) for c in members]
        out.append(fresh)
    return out


def _is_consecutive(by: Mapping[int, str]) -> bool:
    first = min(by)
    return len(by) > 1 and first in (0, 1) and sorted(by) == list(range(first, first + len(by)))


def column_names(rows: Sequence[LogRow]) -> list[str]:
    """All names, in the order in which they first come."""
    out: dict[str, None] = {}
    for row in rows:
        if not out.keys() >= row.keys():
            out |= dict.fromkeys(row)
    return list(out)


def normalized_name(column: str) -> str:
    """A column's name as rules compare it: isCorrect, is-correct and Is Correct are one."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(column))
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")
