"""Sudoku, 4 x 4 and 9 x 9, each with one solution."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ponder import verify
from ponder.errors import TaskError, UsageError
from ponder.tasks.generated.question_task import QuestionTask
from ponder.tasks.split import stable_hash
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

Cells = tuple[int, ...]  # row by row, 0 for an empty one

MIN_CLUES = {4: 4, 9: 24}  # clues that digging reaches in reasonable time; the known minimum of 9 x 9 is 17


class SudokuItem(NamedTuple):
    """The boxes on the diagonal, from which the rest of the grid follows, and where to begin to dig holes.

    So what decides the side of the split is drawn in no time, and a grid has one side whatever its holes.
    """

    boxes: Cells
    holes: int


@dataclass(frozen=True, kw_only=True)
class Sudoku(QuestionTask[SudokuItem]):
    """Grids with `side` cells to a side and at least so many `clues`."""

    ANSWER_SPEC = AnswerSpec("the whole grid", ("tag", "boxed"), ", one row per line", allow_bare=False)
    LEVELS = (
        {"side": 4, "clues": 11},
        {"side": 4, "clues": 7},
        {"side": 9, "clues": 60},
        {"side": 9, "clues": 45},
        {"side": 9, "clues": 34},
        {"side": 9, "clues": 26},
    )

    side: int = 4
    clues: int = 8
    prompt: str = "Solve this sudoku. Empty cells are dots; each row, column and box of {question}"

    def check(self) -> None:
        if self.side not in MIN_CLUES:
            raise UsageError(f"side is {self.side}; sudokus are made with 4 or 9 cells to a side")
        if not MIN_CLUES[self.side] <= self.clues < self.side**2:
            raise UsageError(f"clues is {self.clues}; give {MIN_CLUES[self.side]} to {self.side**2 - 1}")

    @property
    def name(self) -> str:
        return "sudoku"

    @property
    def verifier(self) -> verify.SudokuVerifier:
        return verify.SudokuVerifier(self.side)

    def draw(self, rng: random.Random) -> SudokuItem:
        while True:
            order = list(range(1, self.side + 1))
            boxes = tuple(n for _ in range(math.isqrt(self.side)) for n in rng.sample(order, self.side))
            # Three boxes of a 9 x 9 grid can always be completed; two of a 4 x 4 grid often cannot.
            if self.side == 9 or next(solutions(_diagonal(boxes, 4)), None):
                return SudokuItem(boxes, rng.getrandbits(32))

    def key(self, item: SudokuItem) -> str:
        return f"{self.side} {item.boxes}"

    def question(self, item: SudokuItem) -> str:
        box = math.isqrt(self.side)
        grid = grid_text(make_puzzle(item, self.side, self.clues), self.side)
        return f"{box} x {box} cells must hold each number from 1 to {self.side} once.\n{grid}"

    def answer(self, item: SudokuItem) -> str:
        return "".join(str(n or ".") for n in make_puzzle(item, self.side, self.clues))

    def tags(self, item: SudokuItem) -> dict[str, Any]:
        return {"side": self.side, "clues": self.clues}

    def solution(self, problem: Problem) -> str:
        clues = tuple(0 if sign == "." else int(sign) for sign in problem.answer)
        solved = next(solutions(clues), None)
        if solved is None:
            raise TaskError(f"problem {problem.id!r} has no solution; leave it out")
        return grid_text(solved, self.side)


@lru_cache(maxsize=64)  # a puzzle is asked for its question and for its answer
def make_puzzle(item: SudokuItem, side: int, clues: int) -> Cells:
    """The one grid that an item stands for, with its holes."""
    grid = next(solutions(_diagonal(item.boxes, side), random.Random(stable_hash(str(item.boxes)))))
    return remove_clues(grid, clues, random.Random(item.holes))


def remove_clues(grid: Cells, clues: int, rng: random.Random) -> Cells:
    """Empty cells in random order, until so many clues are left, wherever the solution stays the only one."""
    cells = list(grid)
    order = rng.sample(range(len(grid)), len(grid))
    left = len(grid)
    while order and left > clues:
        # Several at once while there are many clues; one by one where a group could not go.
        group = [order.pop() for _ in range(min(max(1, (left - clues) // 4), len(order), left - clues))]
        for some in (group, *([[at] for at in group] if len(group) > 1 else [])):
            trial = cells.copy()
            for at in some:
                trial[at] = 0
            if trial != cells and _unique(trial):
                left -= sum(1 for at in some if cells[at])
                cells = trial
                if some is group:
                    break
    return tuple(cells)


def solutions(cells: Sequence[int], rng: random.Random | None = None) -> Iterator[Cells]:
    """Each way to fill a grid: always at the cell with the fewest candidates, in random order where one is given."""
    side = math.isqrt(len(cells))
    box = math.isqrt(side)
    rows, columns, boxes = [0] * side, [0] * side, [0] * side  # numbers used there, as bits
    units = [(i // side, i % side, i // side // box * box + i % side // box) for i in range(len(cells))]
    grid = list(cells)
    for i, n in enumerate(grid):
        if n:
            r, c, b = units[i]
            if (rows[r] | columns[c] | boxes[b]) >> n & 1:
                return
            for used, at in ((rows, r), (columns, c), (boxes, b)):
                used[at] |= 1 << n
    every = (1 << side + 1) - 2

    def fill() -> Iterator[Cells]:
        least, best, free = side + 1, -1, 0
        for i, n in enumerate(grid):
            if not n:
                r, c, b = units[i]
                candidates = every & ~(rows[r] | columns[c] | boxes[b])
                count = candidates.bit_count()
                if count < least:
                    least, best, free = count, i, candidates
                    if count < 2:
                        break
        if best < 0:
            yield tuple(grid)
            return
        numbers = [n for n in range(1, side + 1) if free >> n & 1]
        if rng:
            rng.shuffle(numbers)
        r, c, b = units[best]
        for n in numbers:
            bit = 1 << n
            grid[best] = n
            rows[r], columns[c], boxes[b] = rows[r] | bit, columns[c] | bit, boxes[b] | bit
            yield from fill()
            rows[r], columns[c], boxes[b] = rows[r] & ~bit, columns[c] & ~bit, boxes[b] & ~bit
        grid[best] = 0

    yield from fill()


def grid_text(cells: Cells, side: int) -> str:
    """A grid as lines, with dots for what is empty."""
    return "\n".join(" ".join(str(n or ".") for n in cells[i : i + side]) for i in range(0, len(cells), side))


def _unique(cells: Sequence[int]) -> bool:
    grids = solutions(cells)
    return next(grids, None) is not None and next(grids, None) is None


def _diagonal(boxes: Cells, side: int) -> Cells:
    """The grid in which only the boxes on the diagonal are filled."""
    box = math.isqrt(side)
    grid = [0] * side**2
    for k, n in enumerate(boxes):
        pattern, place = divmod(k, side)
        row, column = pattern * box + place // box, pattern * box + place % box
        grid[row * side + column] = n
    return tuple(grid)
