"""Verify that a sudoku is solved and its clues are unchanged. Any valid solution counts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.errors import UsageError
from ponder.types import Score
from ponder.verify.answers.structured import extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

Grid = list[list[int]]

_RULES = re.compile(r"[\s|,;\[\]+\-–─│┼═║╬]+")  # lines and separators between cells


@dataclass(frozen=True)
class SudokuVerifier(TextVerifier):
    """1 where every row, column and box holds each number once and every clue is unchanged.

    The problem's answer is the clues: a string of 81 (or 16, 256) signs with `.` or `0` for an empty cell, or rows
    of numbers with 0. The completion gives the whole grid in one `<answer>` or box, with any lines between cells.
    """

    size: int = 9

    def __post_init__(self) -> None:
        if self.size < 4 or self.size > 25 or math.isqrt(self.size) ** 2 != self.size:
            raise UsageError(f"size is {self.size}; a sudoku has 4, 9, 16 or 25 cells to a side")

    def verify(self, text: str, gold: Any) -> Score:
        clues = self.clues(gold)
        extracted = extract_structured(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        grid = read_grid(extracted.answer, self.size)
        if grid is None:
            return Score(0.0, f"malformed: not {self.size} x {self.size} numbers from 1 to {self.size}")
        for r, (row, clue_row) in enumerate(zip(grid, clues, strict=True), 1):
            for c, (cell, clue) in enumerate(zip(row, clue_row, strict=True), 1):
                if clue and cell != clue:
                    return Score(0.0, f"the clue {clue} in row {r}, column {c} was changed to {cell}")
        fault = repeated_digit(grid)
        return Score(0.0, f"wrong: {fault}") if fault else Score(1.0, "right")

    def clues(self, gold: Any) -> Grid:
        """The clues, with 0 for empty cells. Raises where they contradict each other."""
        if isinstance(gold, str) and self.size <= 9:
            cells: list[Any] = [int(sign) if sign in "0123456789" else 0 for sign in gold if sign in "0123456789._"]
        elif isinstance(gold, Sequence) and not isinstance(gold, str):
            cells = [cell for row in gold for cell in (row if isinstance(row, Sequence) else [row])]
        else:
            bad_data(f"{repr_for_reason(gold)} are no clues; give a string of signs or rows of numbers")
        if len(cells) != self.size**2 or not all(type(n) is int and 0 <= n <= self.size for n in cells):
            bad_data(f"the clues are not {self.size} x {self.size} numbers from 0 to {self.size}")
        grid = _rows(cells, self.size)
        if fault := repeated_digit(grid):
            bad_data(f"the clues contradict each other: {fault}")
        return grid


def read_grid(text: str, size: int) -> Grid | None:
    """The full grid, with cells separated by any drawn lines, or as digits in a row; None for anything else."""
    cells = [cell for cell in _RULES.split(text) if cell]
    if len(cells) != size**2 and size <= 9:
        cells = [sign for cell in cells for sign in cell]
    if len(cells) != size**2 or not all(re.fullmatch("[1-9][0-9]?", cell) for cell in cells):
        return None
    numbers = [int(cell) for cell in cells]
    return _rows(numbers, size) if max(numbers) <= size else None


def repeated_digit(grid: Grid) -> str:
    """Where a number is repeated in a row, column or box; empty if nowhere. Zeros are empty cells."""
    side = math.isqrt(len(grid))
    seen: set[tuple[str, int, int]] = set()
    for r, row in enumerate(grid):
        for c, n in enumerate(row):
            if not n:
                continue
            for unit, at in (("row", r), ("column", c), ("box", r // side * side + c // side)):
                if (unit, at, n) in seen:
                    return f"{n} stands twice in {unit} {at + 1}"
                seen.add((unit, at, n))
    return ""


def _rows(cells: list[int], size: int) -> Grid:
    return [cells[i : i + size] for i in range(0, len(cells), size)]
