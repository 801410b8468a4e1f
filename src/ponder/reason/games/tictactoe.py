"""Tic-tac-toe: a board of nine signs, row by row; a move is a cell from 0 to 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.reason.games.move_reader import read_number
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

    def board(self, state: str) -> str:
        """The board for a terminal: signs in the cells that are taken, numbers in the empty ones."""
        cells = _numbered_cells(state)
        return "\n---+---+---\n".join(" " + " | ".join(cells[i : i + 3]) for i in (0, 3, 6))

    def question(self, state: str) -> str:
        """A position as a question to a language model."""
        cells = _numbered_cells(state)
        rows = "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))
        return (
            f"You play {player_to_move(state)} in a game of tic-tac-toe, and it is your turn. X and O stand in the"
            f" cells that are taken, numbers in those that are empty.\n{rows}\nWhich cell do you take? Answer with its"
            " number only."
        )

    def parse_move(self, text: str) -> int | None:
        """The cell that an answer names, empty or not."""
        number = read_number(text, 1, 9)
        return None if number is None else number - 1

    def features(self, states: Sequence[str]) -> NDArray[np.float32]:
        """For each line that is still open to one side only: has it 1 or 2 signs there? The mover's lines first."""
        out = np.zeros((len(states), 4, len(WINNING_LINES)), np.float32)
        for row, state in enumerate(states):
            mover = player_to_move(state)
            for place, line in enumerate(WINNING_LINES):
                taken = [state[i] for i in line if state[i] != "."]
                if taken and len(set(taken)) == 1 and len(taken) < 3:
                    out[row, (0 if taken[0] == mover else 2) + len(taken) - 1, place] = 1
        return out.reshape(len(states), -1)


def _numbered_cells(state: str) -> list[str]:
    return [sign if sign != "." else str(i + 1) for i, sign in enumerate(state)]


def player_to_move(board: str) -> str:
    """X begins."""
    return "X" if board.count(".") % 2 else "O"
