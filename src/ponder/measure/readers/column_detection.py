"""Detect the role of each column of a log, by its name and its values. Columns that the user names take precedence.

Within a list of aliases the first column that the log has, and whose values fit, is taken. The reading notes show which
column was taken and which others fit. Where two fit equally well, an error asks the user to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.errors import UnknownName, UsageError
from ponder.measure.readers.cell_values import (
    EMPTY_WORDS,
    RIGHT_WORDS,
    WRONG_WORDS,
    all_cells_parse,
    parse_cell_count,
    parse_cell_number,
    parse_cell_text,
    parse_verdict,
)
from ponder.measure.readers.column_aliases import (
    AMBIGUOUS_COUNT_NAMES,
    COLUMN_ALIASES,
    FIRST_WEAK_VERDICT_ALIAS,
    GENERIC_ID_NAMES,
    LIST_ONLY_ALIASES,
    MAX_SYSTEM_NAME_CHARS,
    MAX_SYSTEMS,
    NON_PROBLEM_PREFIXES,
    VERDICT_WORDS,
    ColumnMap,
)
from ponder.measure.readers.row_layout import VALUES_COLUMN, LogRow, column_names, normalized_name

NO_VERSION = ("version", "none")  # --column version=none: what is called so is another thing's version


@dataclass(frozen=True)
class DetectedColumns:
    """Columns by role, and notes on the choice."""

    by_role: Mapping[str, str]
    notes: tuple[str, ...]

    def get(self, role: str) -> str | None:
        return self.by_role.get(role)


def detect_columns(rows: Sequence[LogRow], given: ColumnMap) -> DetectedColumns:
    """The columns of these rows. `rows` are all of them: a rule that looks at a few can be wrong about the rest."""
    columns = column_names(rows)
    roles = {role: getattr(given, role) for role in COLUMN_ALIASES if getattr(given, role)}
    looked = [r for r in ("correct", "system", "task", "version", "id", "attempt") if (r, roles.get(r)) != NO_VERSION]
    roles = {role: column for role, column in roles.items() if (role, column) != NO_VERSION}
    for role, column in roles.items():
        for part in column.split(","):
            if part not in columns and not (role == "n" and part.isdigit()):
                raise UnknownName(f"column for {role}", part, columns)
    given_roles, notes, cells = frozenset(roles), list[str](), _CellCache(rows, given)
    for role in looked:
        if role not in roles and (column := _detect_role(role, columns, roles, cells, notes)):
            roles[role] = column
    _detect_counts(columns, roles, cells, given_roles)
    _assign_answer_column(columns, roles, cells, notes, given_roles)
    for role in ("answer", "score", "tokens", "text", "gold", "question"):
        if role not in roles and (column := _detect_role(role, columns, roles, cells, notes)):
            roles[role] = column
    if "id" not in roles:
        notes.append("no column says which problem a row is of: each row is one; --column id=NAME names one")
    shown = ", ".join(f"{role} = {roles[role]}" for role in COLUMN_ALIASES if role in roles)
    return DetectedColumns(roles, (f"columns: {shown}", *notes))


class _CellCache:
    """Columns' cells, flat, and what they hold; each looked at once."""

    def __init__(self, rows: Sequence[LogRow], given: ColumnMap) -> None:
        self.rows, self.right = rows, frozenset(r.strip().lower() for r in given.right.split(",") if r.strip())
        self._flat: dict[str, list[Any]] = {}
        self._listed: dict[str, bool] = {}
        self._distinct: dict[str, list[Any]] = {}

    def __call__(self, column: str) -> list[Any]:
        if column not in self._flat:
            flat: list[Any] = []
            for row in self.rows:
                value = row.get(column)
                flat += value if isinstance(value, list) else [value]
            self._flat[column] = flat
        return self._flat[column]

    def is_list_column(self, column: str) -> bool:
        if column not in self._listed:
            self._listed[column] = "," in column or any(isinstance(row.get(column), list) for row in self.rows)
        return self._listed[column]

    def distinct(self, column: str) -> Iterable[Any]:
        """Each kind of cell once, where that can be: a verdict has few, however many attempts there are."""
        if column not in self._distinct:
            try:
                self._distinct[column] = [v for _, v in {(type(v), v): (None, v) for v in self(column)}.values()]
            except TypeError:  # lists within lists
                self._distinct[column] = self(column)
        return self._distinct[column]

    def is_complete(self, column: str) -> bool:
        return all(row.get(column) is not None for row in self.rows)

    def verdicts(self, column: str) -> bool:
        return all_cells_parse(self.distinct(column), lambda v: parse_verdict(v, self.right))

    def boolean(self, column: str) -> bool:
        return any(isinstance(v, bool) for v in self.distinct(column))

    def is_binary_verdict(self, column: str) -> bool:
        """Only right and wrong."""
        return self.verdicts(column) and {parse_verdict(v, self.right) for v in self.distinct(column)} <= {
            0.0,
            1.0,
            None,
        }


def _columns_named(columns: Sequence[str], alias: str) -> list[str]:
    """Columns of this name, or whose last part it is."""
    whole = [c for c in columns if normalized_name(c) == alias]
    parts = [c for c in columns if "." in c and normalized_name(c.rpartition(".")[2]) == alias]
    return whole or [
        c
        for c in parts
        if alias not in (*GENERIC_ID_NAMES, "version")
        or not NON_PROBLEM_PREFIXES & {normalized_name(x) for x in c.split(".")[:-1]}
    ]


def _detect_role(
    role: str, columns: Sequence[str], roles: Mapping[str, str], cells: _CellCache, notes: list[str]
) -> str | None:
    taken = {column for r, column in roles.items() if (r, role) != ("id", "question")}  # a question can be the id
    fitting: list[str] = []
    for at, alias in enumerate(COLUMN_ALIASES[role]):
        called = _columns_named([c for c in columns if c not in taken], alias)
        same = [c for c in called if c not in fitting and _fits_role(role, c, at, roles, cells)]
        if len(same) > 1 and not fitting:
            raise UsageError(f"{role} may be {' or '.join(same)}: say which with --column {role}=NAME")
        fitting += same
        if role == "correct" and not fitting:
            notes += _near_miss_notes([c for c in called if c not in same], cells, at)
    if role == "id":
        return _choose_id_column(fitting, roles, cells)
    if not fitting and role == "correct":
        fitting = _detect_verdict_by_values(columns, cells)
    if role == "correct" and len(fitting) > 1:
        notes.append(f"correct could also be {', '.join(fitting[1:])}: --column correct=NAME chooses")
    return fitting[0] if fitting else None


def _assign_answer_column(
    columns: Sequence[str], roles: dict[str, str], cells: _CellCache, notes: list[str], given_roles: frozenset[str]
) -> None:
    """A column `answer` beside verdicts, one cell per row: is it the gold one, or what was given? What differs between
    the attempts at a problem was given. Where a problem has one row nothing tells, unless the other one is there."""
    called = [c for c in _columns_named(columns, "answer") if c not in roles.values() and not cells.is_list_column(c)]
    if (
        not called
        or "correct" not in roles
        or cells.is_list_column(roles["correct"])
        or {"answer", "gold"} <= given_roles
    ):
        return
    column, others = called[0], [c for c in columns if c != called[0]]
    if "gold" in given_roles or any(_columns_named(others, g) for g in COLUMN_ALIASES["gold"] if g != "answer"):
        roles.setdefault("answer", column)
    elif "answer" in given_roles or any(_columns_named(others, a) for a in COLUMN_ALIASES["answer"] if a != "answer"):
        roles.setdefault("gold", column)
    elif "id" in roles and not _one_row_each(roles["id"], (), cells):
        varied = len({(str(r.get(roles["id"])), str(r.get(column))) for r in cells.rows})
        same = varied == len({str(r.get(roles["id"])) for r in cells.rows})
        roles.setdefault("gold" if same else "answer", column)
    else:
        notes.append(f"{column} was left out: --column gold={column}, or --column answer={column}, says what it is")


def _near_miss_notes(columns: Sequence[str], cells: _CellCache, at: int) -> list[str]:
    """A column called so, most of whose words are verdicts: passing it over in silence would be a choice unseen."""
    out = []
    for column in columns if at < FIRST_WEAK_VERDICT_ALIAS else ():
        words = {str(v).strip().lower() for v in cells.distinct(column) if isinstance(v, str)}
        if words & (RIGHT_WORDS | WRONG_WORDS) and (odd := sorted(words - RIGHT_WORDS - WRONG_WORDS - EMPTY_WORDS)):
            right = next(iter(sorted(words & RIGHT_WORDS)), "VALUE")
            how = f"--column correct={column} --column right={right} takes it, with all else wrong"
            out.append(f"{column} was passed over: {odd[0][:40]!r} is neither right nor wrong; {how}")
    return out


def _fits_role(role: str, column: str, at: int, roles: Mapping[str, str], cells: _CellCache) -> bool:
    wide = any(cells.is_list_column(roles[r]) for r in ("correct", "answer", "text") if r in roles)
    listed = cells.is_list_column(column)
    match role:
        case "correct":
            if normalized_name(column) in LIST_ONLY_ALIASES and not listed:
                return False
            if normalized_name(column) in ("label", "labels") and any(
                _columns_named(column_names(cells.rows), a) for a in COLUMN_ALIASES["answer"]
            ):
                return False  # beside a prediction it is what should have been said
            return (
                cells.is_binary_verdict(column)
                if at >= FIRST_WEAK_VERDICT_ALIAS or not listed
                else cells.verdicts(column)
            )
        case "score":
            return listed >= wide and all_cells_parse(_steps(cells(column)), parse_cell_number)
        case "tokens":
            return listed == wide and all_cells_parse(cells.distinct(column), parse_cell_number)
        case "answer":
            if normalized_name(column) == "answer" and not listed:
                return False  # see _assign_answer_column
            return listed == wide or "correct" not in roles
        case "text":
            return listed >= wide and all_cells_parse(cells.distinct(column), _require_text)
        case "gold" if normalized_name(column) == "answer":
            return not listed and ("correct" not in roles or wide)
        case "gold" | "question":
            return not listed and all_cells_parse(cells.distinct(column), parse_cell_text)
        case "id" | "attempt":
            return not listed and cells.is_complete(column)
        case "system" | "task" | "version":
            values = {str(row.get(column)) for row in cells.rows}
            several = len(values) > 1 or (role == "version" and cells.is_complete(column))
            return (
                not listed and several and len(values) <= MAX_SYSTEMS and max(map(len, values)) <= MAX_SYSTEM_NAME_CHARS
            )
    return True


def _choose_id_column(fitting: Sequence[str], roles: Mapping[str, str], cells: _CellCache) -> str | None:
    """The first that fits; but where it only numbers the rows of attempts, the first by which they come together."""
    if not fitting or ("correct" in roles and cells.is_list_column(roles["correct"])):
        return fitting[0] if fitting else None
    apart = [roles[r] for r in ("system", "task") if r in roles]
    for column in fitting if normalized_name(fitting[0]) in GENERIC_ID_NAMES else fitting[:1]:
        if len({str(row.get(column)) for row in cells.rows}) > 1 and not _one_row_each(column, apart, cells):
            return column
    return fitting[0]


def _one_row_each(column: str, apart: Sequence[str], cells: _CellCache) -> bool:
    keys = {tuple([str(row.get(c)) for c in (column, *apart)]) for row in cells.rows}
    return len(keys) == len(cells.rows)


def _require_text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError("no text")
    return value or None


def _steps(cells: list[Any]) -> list[Any]:
    return [step for cell in cells for step in (cell if isinstance(cell, list) else [cell])]


def _detect_verdict_by_values(columns: Sequence[str], cells: _CellCache) -> list[str]:
    """No name tells: the one column that holds nothing but right and wrong, and has a telling word in its name."""
    named = set(COLUMN_ALIASES["id"]) | set(COLUMN_ALIASES["attempt"]) | set(COLUMN_ALIASES["version"])
    fitting = [
        c
        for c in columns
        if normalized_name(c) not in named and cells.is_binary_verdict(c) and len(list(cells.distinct(c))) > 1
    ]
    telling = [c for c in fitting if c == VALUES_COLUMN or VERDICT_WORDS & set(normalized_name(c).split("_"))]
    if len(telling) == 1:
        return telling
    candidates = telling or fitting
    if len(candidates) == 1:
        raise UsageError(
            f"is {candidates[0]} the verdict? It holds right and wrong: say so with --column correct={candidates[0]}"
        )
    if candidates:
        raise UsageError(
            f"the columns {', '.join(candidates[:6])} all hold right and wrong: say which with --column correct=NAME,"
            f" or --column correct={','.join(candidates[:3])},... where they are attempts of one system, or --column"
            f" systems={','.join(candidates[:3])},... where each is a system"
        )
    return []


def _detect_counts(
    columns: Sequence[str], roles: dict[str, str], cells: _CellCache, given_roles: frozenset[str]
) -> None:
    """Samples and right ones in place of verdicts: one row per problem, and numbers that can be counts."""
    if given_roles & {"n", "c", "rate"} and not {"n"} < given_roles & {"n", "c", "rate"}:
        raise UsageError("counts take two columns: --column n=NAME (or a number) and --column c=NAME or rate=NAME")
    if "correct" in given_roles or ("correct" in roles and cells.is_list_column(roles["correct"])):
        return
    apart = [roles[r] for r in ("system", "task") if r in roles]
    if "id" in roles and not _one_row_each(roles["id"], apart, cells):
        return
    free = [c for c in columns if c not in roles.values() or c == roles.get("correct")]
    for role, read in (("n", parse_cell_count), ("c", parse_cell_count), ("rate", parse_verdict)):
        if role in given_roles:
            continue
        for alias in COLUMN_ALIASES[role]:
            fitting = [c for c in _columns_named(free, alias) if c not in roles.values() or c == roles.get("correct")]
            fitting = [c for c in fitting if not cells.is_list_column(c) and not cells.boolean(c)]
            fitting = [c for c in fitting if all_cells_parse(cells.distinct(c), read)]
            if fitting and role not in roles:
                roles[role] = fitting[0]
    if "n" in roles and ("c" in roles or "rate" in roles):
        if (
            roles.get("correct") == roles.get("c", "")
            and normalized_name(roles["n"]) in AMBIGUOUS_COUNT_NAMES
            and not given_roles & {"n", "c"}
        ):
            n, c = roles["n"], roles["c"]
            raise UsageError(
                f"{c} may be verdicts, or counts of {n}: say --column correct={c}, or --column n={n} --column c={c}"
            )
        roles.pop("correct", None)
        if "c" in roles:
            roles.pop("rate", None)
        return
    for role in ("n", "c", "rate"):
        roles.pop(role, None)
