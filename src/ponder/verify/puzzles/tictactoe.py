"""Verify that a tic-tac-toe move is legal and, by searching the whole game, optimal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ponder.types import Score
from ponder.verify.answers.structured import extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

WINNING_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_OTHER = {"X": "O", "O": "X"}
_SIGNS = {"X": "X", "x": "X", "O": "O", "o": "O", ".": ".", "_": ".", "-": ".", " ": "."}
_OUTCOME = {1: "wins", 0: "draws", -1: "loses"}


@dataclass(frozen=True)
class TicTacToeVerifier(TextVerifier):
    """1 where the move keeps the best outcome the position allows; `optimal=False`: where it is legal.

    The problem's answer is the board, nine signs X, O and `.` row by row (a string, or `{"board": ..., "turn": "O"}`;
    without a turn, X moves where both have as many). The completion names a cell: 1 to 9, or `row, column` from 1.
    """

    optimal: bool = True

    def verify(self, text: str, gold: Any) -> Score:
        board, turn = _position(gold)
        extracted = extract_structured(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        cell = read_cell(extracted.answer)
        if cell is None:
            return Score(0.0, "malformed: neither a cell from 1 to 9 nor row, column")
        if board[cell] != ".":
            return Score(0.0, f"illegal: cell {cell + 1} is taken")
        if not self.optimal:
            return Score(1.0, "legal")
        outcome, best = -minimax_outcome(_played(board, cell, turn), _OTHER[turn]), minimax_outcome(board, turn)
        return (
            Score(1.0, "right")
            if outcome == best
            else Score(0.0, f"wrong: {_OUTCOME[outcome]} where {turn} {_could(best)}")
        )


def _could(best: int) -> str:
    return "could win" if best > 0 else "could draw"


def read_cell(text: str) -> int | None:
    """The index of the cell, 0 to 8; None where the text names none."""
    if cell := re.fullmatch(r"(?:(?:cell|position|square)\s+)?([1-9])\.?", text, re.IGNORECASE):
        return int(cell[1]) - 1
    pair = re.fullmatch(r"[(\[]?\s*(?:row\s+)?([1-3])\s*,\s*(?:col(?:umn)?\s+)?([1-3])\s*[)\]]?", text, re.IGNORECASE)
    return (int(pair[1]) - 1) * 3 + int(pair[2]) - 1 if pair else None


@cache  # at most 5,478 positions
def minimax_outcome(board: str, turn: str) -> int:
    """The outcome for the player to move under best play: 1 a win, 0 a draw, -1 a loss."""
    if has_won(board, _OTHER[turn]):
        return -1
    moves = [i for i, sign in enumerate(board) if sign == "."]
    return max((-minimax_outcome(_played(board, i, turn), _OTHER[turn]) for i in moves), default=0)


def has_won(board: str, player: str) -> bool:
    return any(all(board[i] == player for i in line) for line in WINNING_LINES)


def _played(board: str, cell: int, player: str) -> str:
    return board[:cell] + player + board[cell + 1 :]


def _flat(board: Any) -> Iterator[str]:
    for row in board if isinstance(board, str | Sequence) else ():
        yield from (str(sign) for sign in row if sign != "\n") if isinstance(row, str | Sequence) else "?"


def _position(gold: Any) -> tuple[str, str]:
    """The board and whose turn it is."""
    raw_board, turn = (gold.get("board"), gold.get("turn")) if isinstance(gold, Mapping) else (gold, None)
    board = "".join(_SIGNS.get(sign, "?") for sign in _flat(raw_board))
    if not re.fullmatch("[XO.]{9}", board):
        bad_data(f"{repr_for_reason(raw_board)} is not a board of nine signs X, O and '.'")
    ahead = board.count("X") - board.count("O")
    turn = str(turn).upper() if turn else ("X" if ahead <= 0 else "O")
    if turn not in _OTHER or abs(ahead) > 1 or ahead == (1 if turn == "X" else -1):
        bad_data(f"on {board} it cannot be {repr_for_reason(turn)}'s turn")
    if has_won(board, "X") or has_won(board, "O") or "." not in board:
        bad_data(f"on {board} the game is over")
    return board, turn
