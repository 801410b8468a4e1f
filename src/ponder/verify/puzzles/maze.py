"""Verify that a path leads through a maze, move by move."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ponder.types import Score
from ponder.verify.answers.structured import extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

MOVES = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
_NAMES = {"up": "u", "down": "d", "left": "l", "right": "r", "north": "u", "south": "d", "west": "l", "east": "r",
          "↑": "u", "↓": "d", "←": "l", "→": "r"}  # fmt: skip
_WORD = re.compile(r"[^\s,;\[\]()\"'>.-]+")
_NUMBERED = re.compile(r"^[ \t]{0,8}[0-9]{1,4}[.)][ \t]", re.MULTILINE)

MAX_MAZE_CELLS = 40_000


class Cell(NamedTuple):
    row: int
    column: int


@dataclass(frozen=True)
class MazeVerifier(TextVerifier):
    """1 where the moves lead from S to G without meeting a wall; `shortest`: with no more moves than needed.

    The problem's answer is the maze as lines: `#` is a wall, `S` the start, `G` (or `E`) the goal, anything else is
    free. The completion lists moves as words (up, down, left, right; north, ...), as arrows, or as letters (`RRDU`).
    """

    shortest: bool = False

    def verify(self, text: str, gold: Any) -> Score:
        lines, start, goal = _maze(gold)
        least = shortest_path_length(tuple(lines), start, goal)
        if least is None:
            bad_data("no path leads from S to G")
        extracted = extract_structured(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        moves = read_moves(extracted.answer)
        if moves is None:
            return Score(0.0, "malformed: not a list of moves up, down, left and right")
        at = start
        for n, move in enumerate(moves, 1):
            at = Cell(at.row + MOVES[move][0], at.column + MOVES[move][1])
            if _wall(lines, at):
                return Score(0.0, f"wrong: move {n} walks into a wall")
        if at != goal:
            return Score(0.0, f"wrong: ends in row {at.row + 1}, column {at.column + 1}, not at the goal")
        if self.shortest and len(moves) > least:
            return Score(0.0, f"wrong: {len(moves)} moves where {least} are enough")
        return Score(1.0, "right")


def read_moves(text: str) -> list[str] | None:
    """The moves as u, d, l and r; None where the text is not a list of moves."""
    text = _NUMBERED.sub("", text)
    if re.search("[A-Za-z]", text):
        text = text.replace("→", " ")  # "right → down": between words an arrow says "then"
    words = [word.lower() for word in _WORD.findall(text)]
    moves: list[str] = []
    for word in words:
        if word in _NAMES:
            moves.append(_NAMES[word])
        else:
            moves += [_NAMES.get(letter, letter) for letter in word]
    return moves if moves and all(move in MOVES for move in moves) else None


@lru_cache(maxsize=1024)
def shortest_path_length(lines: tuple[str, ...], start: Cell, goal: Cell) -> int | None:
    """The number of moves of a shortest path, by breadth-first search; None where there is no path."""
    seen, edge = {start}, deque([(start, 0)])
    while edge:
        at, moves = edge.popleft()
        if at == goal:
            return moves
        for down, across in MOVES.values():
            step = Cell(at.row + down, at.column + across)
            if step not in seen and not _wall(lines, step):
                seen.add(step)
                edge.append((step, moves + 1))
    return None


def _wall(lines: Sequence[str], at: Cell) -> bool:
    """Whether this cell is a wall. Cells outside the maze are walls."""
    return not (0 <= at.row < len(lines) and 0 <= at.column < len(lines[at.row])) or lines[at.row][at.column] == "#"


def _maze(gold: Any) -> tuple[list[str], Cell, Cell]:
    lines = gold.splitlines() if isinstance(gold, str) else gold
    if not isinstance(lines, Sequence) or not lines or not all(isinstance(line, str) for line in lines):
        bad_data(f"{repr_for_reason(gold)} is not a maze as lines of text")
    if sum(map(len, lines)) > MAX_MAZE_CELLS:
        bad_data(f"a maze of more than {MAX_MAZE_CELLS} cells")
    cells = {sign: [Cell(r, c) for r, line in enumerate(lines) for c, s in enumerate(line) if s in sign]
             for sign in ("S", "GE")}  # fmt: skip
    if len(cells["S"]) != 1 or len(cells["GE"]) != 1:
        bad_data("a maze needs one S and one G (or E)")
    return list(lines), cells["S"][0], cells["GE"][0]
