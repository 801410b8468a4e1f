"""Tic-tac-toe: a board of nine signs, row by row; a move is a cell from 0 to 8."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.verify.puzzles.tictactoe import WINNING_LINES


@dataclass(frozen=True, slots=True)
class TicTacToeGame:
    @property
    def name(self) -> str:
        return "tic-tac-toe"

    @property
    def players(self) -> int:
        return 2

    def start(self) -> str:
        return "." * 9

    def moves(self, state: str) -> Sequence[int]:
        return [i for i, sign in enumerate(state) if sign == "."]

    def play(self, state: str, move: int) -> str:
        if not 0 <= move < 9 or state[move] != ".":
            raise UsageError(f"cell {move} of {state} cannot be played; the empty ones are {self.moves(state)}")
        return state[:move] + player_to_move(state) + state[move + 1 :]

    def outcome(self, state: str) -> float | None:
        for a, b, c in WINNING_LINES:
            if state[a] == state[b] == state[c] != ".":
                return 1.0  # only who moved last can have won
        return None if "." in state else 0.0

    def move_text(self, state: str, move: int) -> str:
        return f"{player_to_move(state)}{move + 1} "

    def question(self, state: str) -> str:
        """A position as a question to a language model."""
        cells = [sign if sign != "." else str(i + 1) for i, sign in enumerate(state)]
        rows = "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))
        return (
            f"You play {player_to_move(state)} in a game of tic-tac-toe, and it is your turn. X and O stand in the"
            f" cells that are taken, numbers in those that are empty.\n{rows}\nWhich cell do you take? Answer with its"
            " number only."
        )

    def parse_move(self, text: str) -> int | None:
        """The first cell that an answer names, empty or not."""
        found = re.search(r"(?<![\d.])[1-9](?!\d|\.\d)", text)
        return int(found[0]) - 1 if found else None


def player_to_move(board: str) -> str:
    """X begins."""
    return "X" if board.count(".") % 2 else "O"
