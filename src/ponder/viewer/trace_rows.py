"""The list of traces: filtered, sorted, and one page at a time. What takes long is answered in part, with `complete`
false, and goes on with the next request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ponder.errors import RunError
from ponder.types import Trace
from ponder.viewer.query import Query
from ponder.viewer.row_database import RowDatabase

SORTS = {"number": "number", "reward": "reward", "advantage": "advantage", "length": "length", "ratio": "ratio"}
MAX_PAGE_ROWS = 5000
DECODE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """An SQL condition on rows, and its values; of it, the part that blocks are known to fit."""

    condition: str
    values: tuple[Any, ...]
    block_condition: str
    block_values: tuple[Any, ...]
    text: str
    order: str
    by_number: bool  # nothing is filtered, and the order is that of the file

    @classmethod
    def from_query(cls, query: Query) -> TraceFilter:
        conditions: list[tuple[str, Any]] = []
        if (step := query.optional_whole("step")) is not None:
            conditions.append(("step = ?", step))
        on_blocks = list(conditions)
        if problem := query.text("problem"):
            conditions.append(("instr(problem, ?) > 0", problem))
        if (least := query.optional_number("min_reward")) is not None:
            conditions.append(("reward >= ?", least))
        if (most := query.optional_number("max_reward")) is not None:
            conditions.append(("reward <= ?", most))
        if stop := query.text("stop"):
            conditions.append(("instr(stops, ?) > 0", f",{stop},"))
        text = query.text("text")
        sort = query.choice("sort", [*SORTS, *(f"-{name}" for name in SORTS)], "number")
        column, down = SORTS[sort.removeprefix("-")], " DESC" if sort.startswith("-") else ""
        return cls(
            _join(conditions), tuple(v for _, v in conditions), _join(on_blocks), tuple(v for _, v in on_blocks), text,
            f"{column} IS NULL, {column}{down}, number", not conditions and not text and column == "number",
        )  # fmt: skip


def _join(conditions: list[tuple[str, Any]]) -> str:
    return " AND ".join(text for text, _ in conditions) or "1"


def list_traces(index: RowDatabase, query: Query) -> dict[str, Any]:
    """One page of the traces that fit the query."""
    index.refresh()
    chosen = TraceFilter.from_query(query)
    size, page = query.whole("size", 50, 1, MAX_PAGE_ROWS), query.whole("page", 0)
    total = index.total
    if chosen.by_number:
        return _page_by_number(index, chosen, total, page * size, size)
    complete = index.decode(chosen.block_condition, chosen.block_values, DECODE_SECONDS)
    indexed = index.count("1", ())
    if chosen.text:
        numbers, whole = _with_text(index, chosen)
        rows = [
            row for n in numbers[page * size : (page + 1) * size] for row in index.select("number = ?", (n,), "1", 1, 0)
        ]
        return _answer(index, len(numbers), indexed, rows, complete and whole)
    rows = index.select(chosen.condition, chosen.values, chosen.order, size, page * size)
    return _answer(index, index.count(chosen.condition, chosen.values), indexed, rows, complete)


def _page_by_number(index: RowDatabase, chosen: TraceFilter, total: int, skip: int, size: int) -> dict[str, Any]:
    """Only the blocks of this page are decoded."""
    down = "DESC" in chosen.order
    low = total - skip - size + 1 if down else skip + 1
    high = total - skip if down else skip + size
    index.decode("first <= ? AND first + count > ?", (high, low), DECODE_SECONDS)
    rows = index.select("number BETWEEN ? AND ?", (low, high), chosen.order, size, 0)
    return _answer(index, total, index.count("1", ()), rows, len(rows) == max(0, min(high, total) - max(low, 1) + 1))


def _answer(index: RowDatabase, total: int, indexed: int, rows: list[Any], complete: bool) -> dict[str, Any]:
    damage = {"damage": index.damage} if index.damage else {}
    return {"total": total, "indexed": indexed, "rows": rows, "complete": complete, **damage}


def _with_text(index: RowDatabase, chosen: TraceFilter) -> tuple[list[int], bool]:
    """The numbers of the traces that hold a text, as far as time allows, and whether all were read."""
    wanted, deadline = chosen.text.lower(), time.monotonic() + DECODE_SECONDS
    matches: list[int] = []
    in_order = index.numbers(chosen.condition, chosen.values, chosen.order)
    by_place = {}
    for number in sorted(in_order):  # a block is decoded once
        if time.monotonic() > deadline:
            break
        try:
            by_place[number] = contains_text(index.read(number)[1], wanted)
        except RunError:
            by_place[number] = False
    matches = [number for number in in_order if by_place.get(number)]
    return matches, len(by_place) == len(in_order)


def contains_text(trace: Trace, wanted: str) -> bool:
    """Whether any text of the trace holds this one, whatever the case of its letters."""
    return any(wanted in step.text.lower() for step in trace.steps)
