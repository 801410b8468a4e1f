"""Convert rows of a log to attempts: wide (a row per problem, with lists), long (a row per attempt) or counts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ponder.errors import UsageError
from ponder.measure.readers.attempts import (
    NO_VERDICT_NOTE,
    SCORE_COLUMN,
    Attempts,
    ProblemAttempts,
    comparable_text,
    list_problems,
    shorten_id,
)
from ponder.measure.readers.cell_values import (
    NotAVerdict,
    all_cells_parse,
    parse_cell_count,
    parse_cell_number,
    parse_cell_text,
    parse_text_list,
    parse_verdict,
)
from ponder.measure.readers.column_aliases import COLUMN_ALIASES, FIRST_WEAK_VERDICT_ALIAS, ColumnMap
from ponder.measure.readers.column_detection import DetectedColumns, detect_columns
from ponder.measure.readers.grading import GRADED_NOTE, final_gold, grade_attempts, read_math_answer, unwrap_single
from ponder.measure.readers.row_layout import LogRow, column_names, normalized_name


def rows_to_attempts(label: str, rows: Sequence[LogRow], columns: ColumnMap = ColumnMap()) -> list[Attempts]:
    """One table as the systems in it."""
    if columns.systems:
        return _read_system_columns(label, rows, columns)
    rows = _unpack_text_lists(rows)
    prefixes = _nested_system_prefixes(rows)
    if prefixes and not columns.correct:
        return [
            a for p in prefixes for a in rows_to_attempts(f"{label}: {p}", _rows_of_system(rows, p, prefixes), columns)
        ]
    return _TableReader(label, rows, columns, detect_columns(rows, columns)).systems()


def _read_system_columns(label: str, rows: Sequence[LogRow], columns: ColumnMap) -> list[Attempts]:
    names = columns.systems.split(",")
    plain = replace(columns, systems="")
    out = []
    for system in names:
        others = set(names) - {system}
        own_rows = [{k: v for k, v in row.items() if k not in others} for row in rows]
        out += rows_to_attempts(f"{label}: {system}", own_rows, replace(plain, correct=system))
    return out


def _nested_system_prefixes(rows: Sequence[LogRow]) -> list[str]:
    """Objects with a verdict of their own, as {"small": {"is_correct": ...}, "large": {"is_correct": ...}}."""
    columns = column_names(rows)
    for alias in COLUMN_ALIASES["correct"][:FIRST_WEAK_VERDICT_ALIAS]:
        called = [c for c in columns if "." in c and normalized_name(c.rpartition(".")[2]) == alias]
        verdict_columns = [c for c in called if all_cells_parse((row.get(c) for row in rows), parse_verdict)]
        if len(verdict_columns) > 1:
            return [c.rpartition(".")[0] for c in verdict_columns]
    return []


def _rows_of_system(rows: Sequence[LogRow], prefix: str, prefixes: Sequence[str]) -> list[LogRow]:
    """What is said of this system, and what is said of none."""
    ours, out = f"{prefix}.", []
    for row in rows:
        shared = {k: v for k, v in row.items() if k.rpartition(".")[0] not in prefixes}
        out.append(shared | {k.removeprefix(ours): v for k, v in row.items() if k.startswith(ours)})
    return out


def _unpack_text_lists(rows: Sequence[LogRow]) -> list[LogRow]:
    """Lists that a table without lists (CSV) holds as text; a text or an answer may look like one and stays."""
    columns = column_names(rows)
    texts = {n for role in ("text", "question", "gold", "id", "answer") for n in COLUMN_ALIASES[role]} - {
        "samples",
        "sample",
    }
    changed = {}
    for column in columns:
        cells = [row.get(column) for row in rows]
        if normalized_name(column) in texts or not any(isinstance(c, str) and c[:1] == "[" for c in cells):
            continue
        if not all(isinstance(c, str) or c is None for c in cells):
            continue
        fresh = [parse_text_list(c) for c in cells]
        if any(isinstance(c, list) for c in fresh) and all(isinstance(c, list) or c in (None, "") for c in fresh):
            changed[column] = fresh
    sizes = [[len(c) if isinstance(c, list) else 0 for c in fresh] for fresh in changed.values()]
    for column in columns:  # answers, where there are as many as verdicts
        if sizes and normalized_name(column) in COLUMN_ALIASES["answer"]:
            fresh = [parse_text_list(row.get(column)) for row in rows]
            if [len(c) if isinstance(c, list) else -1 for c in fresh] in sizes:
                changed[column] = fresh
    return [{**row, **{c: fresh[i] for c, fresh in changed.items()}} for i, row in enumerate(rows)]


@dataclass
class _TableReader:
    label: str
    rows: Sequence[LogRow]
    given: ColumnMap
    found: DetectedColumns

    def __post_init__(self) -> None:
        self.right = frozenset(r.strip().lower() for r in self.given.right.split(",") if r.strip())
        self.notes = list(self.found.notes)
        self.column = dict(self.found.by_role)
        self.version: str | None = None
        if not any(role in self.column for role in ("correct", "c", "rate")):
            self._require_gradable()

    def _require_gradable(self) -> None:
        if "gold" in self.column and ("answer" in self.column or "text" in self.column):
            self.notes.append(GRADED_NOTE)
            return
        seen = "; ".join(f"{k}: {shorten_id(str(v), 30)}" for k, v in list(self.rows[0].items())[:8])
        raise UsageError(
            f"{self.label}: no column says which attempts are right; name one with --column correct=NAME, counts with"
            f" --column n=NAME --column c=NAME, or answers and gold ones with --column answer=NAME --column gold=NAME."
            f" The first row has {seen}{''.join(f'. {s}' for s in self.notes if 'passed over' in s)}"
        )

    def systems(self) -> list[Attempts]:
        parts: dict[str, list[tuple[int, LogRow]]] = defaultdict(list)
        for number_, row in enumerate(self.rows, 1):
            parts[str(row.get(self.column["system"])) if "system" in self.column else ""].append((number_, row))
        version = self.column.get("version")
        versions = sorted({str(row.get(version)) for row in self.rows}) if version and "task" not in self.column else []
        if len(versions) > 1:
            listing = ", ".join(versions[:4])
            raise UsageError(
                f"{self.label} mixes versions of a task ({version}: {listing}); give a log of each, or say --column"
                " version=none where that is no version of the task"
            )
        self.version = f"{version} {versions[0]}" if versions else None
        return [self._system(f"{self.label}: {key}" if key else self.label, part) for key, part in parts.items()]

    def _system(self, label: str, rows: Sequence[tuple[int, LogRow]]) -> Attempts:
        notes = list(self.notes)
        groups = self._read_counts(label, rows) if "n" in self.column else self._read_wide(label, rows)
        if groups is None:
            groups = self._read_long(label, rows)
        if undecided := sum(g.undecided for g in groups):
            notes.append(f"{undecided} attempts {NO_VERDICT_NOTE}")
        sizes = [g.size for g in groups if g.size]
        if sizes and min(sizes) < max(sizes):
            least = min((g for g in groups if g.size), key=lambda g: g.size).problem
            notes.append(f"problems have {min(sizes)} to {max(sizes)} attempts, the fewest at {shorten_id(least)}")
        if empty := [g.problem for g in groups if not g.size]:
            notes.append(f"{len(empty)} problems have no attempts: {list_problems(empty)}")
        if holes := sum(s is None for g in groups for column in g.scores.values() for s in column):
            notes.append(f"{holes} attempts have no score: they never win by score")
        return Attempts(label, tuple(groups), tuple(notes), self.version)

    # one row per problem

    def _read_counts(self, label: str, rows: Sequence[tuple[int, LogRow]]) -> list[ProblemAttempts]:
        return [replace(g, sample_counts=self._count(row, at)) for g, at, row in self._empty_groups(label, rows)]

    def _count(self, row: LogRow, at: int) -> tuple[int, int]:
        try:
            n = int(self.column["n"]) if self.column["n"] not in row else parse_cell_count(row[self.column["n"]])
            if "c" in self.column:
                return n, parse_cell_count(row[self.column["c"]])
            rate = parse_verdict(row[self.column["rate"]])
            right = math.nan if rate is None else rate * n
            if not abs(right - round(right)) < 1e-6 * max(n, 1):
                raise ValueError(f"a rate of {rate} is no whole number of {n} samples")
            return n, round(right)
        except (ValueError, TypeError, KeyError, UsageError) as why:
            raise UsageError(f"{self.label}, row {at}: {why}; counts are whole numbers") from None

    def _read_wide(self, label: str, rows: Sequence[tuple[int, LogRow]]) -> list[ProblemAttempts] | None:
        lists = [c for role in ("correct", "answer", "text", "score") if (c := self.column.get(role))]
        if not any("," in c or any(isinstance(row.get(c), list) for _, row in rows) for c in lists[:2]):
            return None
        return [self._fill_attempts(group, [row], at, wide=True) for group, at, row in self._empty_groups(label, rows)]

    def _empty_groups(
        self, label: str, rows: Sequence[tuple[int, LogRow]]
    ) -> Iterable[tuple[ProblemAttempts, int, LogRow]]:
        """A group without its attempts for each row; a problem may stand in one row only."""
        seen: dict[str, int] = {}
        for at, row in rows:
            problem = self._problem(row, at)
            if seen.setdefault(problem, at) != at:
                raise UsageError(
                    f"{label}: the problem {shorten_id(problem)} stands in rows {seen[problem]} and {at}; name another"
                    " id with --column id=NAME, or what tells systems apart with --column system=NAME"
                )
            yield self._about(problem, row), at, row

    # one row per attempt

    def _read_long(self, label: str, rows: Sequence[tuple[int, LogRow]]) -> list[ProblemAttempts]:
        parts: dict[str, list[tuple[int, LogRow]]] = defaultdict(list)
        for at, row in rows:
            parts[self._problem(row, at)].append((at, row))
        self._distinct(label, parts)
        self._one_version(label, parts)
        return [
            self._fill_attempts(self._about(problem, part[0][1]), [row for _, row in part], part[0][0], wide=False)
            for problem, part in parts.items()
        ]

    def _distinct(self, label: str, parts: Mapping[str, Sequence[tuple[int, LogRow]]]) -> None:
        """Refuse a problem's row that stands twice."""
        if self.given.duplicates == "attempts":
            return
        if attempt := self.column.get("attempt"):
            for problem, part in parts.items():
                seen: dict[str, int] = {}
                for at, row in part:
                    if seen.setdefault(str(row.get(attempt)), at) != at:
                        raise UsageError(
                            f"{label}: attempt {row.get(attempt)} at {shorten_id(problem)} stands in rows"
                            f" {seen[str(row.get(attempt))]} and {at}; leave one out, or --column duplicates=attempts"
                        )
            return
        sizes = [len(part) for part in parts.values()]
        if max(sizes) > 1 and median(sizes) == 1:
            twice = [p for p, part in parts.items() if len(part) > 1]
            raise UsageError(
                f"{label}: most problems have one row, but {len(twice)} have more ({list_problems(twice)}): leave the"
                " doubles out, or say that they are attempts with --column duplicates=attempts"
            )

    def _one_version(self, label: str, parts: Mapping[str, Sequence[tuple[int, LogRow]]]) -> None:
        gold = self.column.get("gold", "")
        for problem, part in parts.items() if gold else ():
            first = comparable_text(final_gold(part[0][1].get(gold)))
            if other := [at for at, row in part if comparable_text(final_gold(row.get(gold))) != first]:
                raise UsageError(
                    f"{label}: the problem {shorten_id(problem)} has one {gold} in row {part[0][0]} and another in row"
                    f" {other[0]}: the log mixes versions, or the gold answer is another column (--column gold=NAME)"
                )

    # both

    def _problem(self, row: LogRow, at: int) -> str:
        if "id" not in self.column:
            return str(at - 1)  # rows are problems, in order
        problem = parse_cell_text(row[self.column["id"]]) or ""  # 7.0 is 7
        return f"{row.get(self.column['task'])}/{problem}" if "task" in self.column else problem

    def _about(self, problem: str, row: LogRow) -> ProblemAttempts:
        question, gold = row.get(self.column.get("question", "")), row.get(self.column.get("gold", ""))
        return ProblemAttempts(problem, question=str(question or ""), gold=final_gold(gold))

    def _fill_attempts(self, group: ProblemAttempts, rows: Sequence[LogRow], at: int, wide: bool) -> ProblemAttempts:
        verdicts = self._cells("correct", rows, wide)
        answers, texts = self._cells("answer", rows, wide), self._cells("text", rows, wide)
        written = None if texts is None else tuple(str(t) if t is not None else "" for t in texts)
        try:
            if verdicts is not None:
                correct = [parse_verdict(v, self.right) for v in verdicts]
            else:
                correct = grade_attempts(answers, written, group.gold)
                answers = answers if answers is not None or written is None else [read_math_answer(t) for t in written]
        except NotAVerdict as why:
            raise UsageError(
                f"{self.label}, row {at}: {why}; say which values mean right with --column right=VALUE"
            ) from None
        scores = self._cells("score", rows, wide)
        tokens = self._cells("tokens", rows, wide)
        try:
            return replace(
                group,
                correct=tuple(correct),
                answers=None if answers is None else tuple(parse_cell_text(unwrap_single(a)) for a in answers),
                scores={} if scores is None else {SCORE_COLUMN: tuple(self._score(s) for s in scores)},
                tokens=None if tokens is None else tuple(_whole(t) for t in tokens),
                texts=written,
            )
        except UsageError as why:
            raise UsageError(f"{self.label}, row {at}: {why}; or name other columns with --column") from None

    def _cells(self, role: str, rows: Sequence[LogRow], wide: bool) -> list[Any] | None:
        column = self.column.get(role)
        if column is None:
            return None
        if not wide:
            return [row.get(column) for row in rows]
        if "," in column:
            return [rows[0].get(c) for c in column.split(",")]
        cells = rows[0].get(column)
        return cells if isinstance(cells, list) else [] if cells in (None, "") else [cells]

    def _score(self, cell: Any) -> float | None:
        if not isinstance(cell, list):
            return parse_cell_number(cell)
        steps = [parse_cell_number(s) for s in cell]
        known = [s for s in steps if s is not None]
        if not known or len(known) < len(steps):
            return None
        joined: dict[str, Callable[[list[float]], float]] = {
            "min": min, "last": lambda k: k[-1], "mean": lambda k: sum(k) / len(k), "product": math.prod,
        }  # fmt: skip
        return joined[self.given.step_score_reduction](known)


def _whole(value: Any) -> int | None:
    number = parse_cell_number(value)
    return None if number is None else int(number)
