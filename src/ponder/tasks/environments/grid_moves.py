"""Moves on a grid: U, D, L, R or the words for them."""

from __future__ import annotations

import re

Cell = tuple[int, int]  # row and column

MOVES: dict[str, Cell] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
MOVES_TEXT = "U (up), D (down), L (left) or R (right)"

_NAMED = re.compile(r"\b(up|down|left|right|[udlr])\b", re.IGNORECASE | re.ASCII)


def read_move(text: str) -> str | None:
    """The letter of the one move that a text names; None where it names none or several."""
    letters = {word[0].upper() for word in _NAMED.findall(text)}
    return letters.pop() if len(letters) == 1 else None


def next_cell(cell: Cell, move: str) -> Cell:
    row, column = MOVES[move]
    return cell[0] + row, cell[1] + column
