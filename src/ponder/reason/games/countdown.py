"""Countdown, played alone: a move joins two of the numbers by + - * or /, until one is left. The verifier judges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ponder.errors import UsageError
from ponder.verify import CountdownVerifier, format_answer

NumberWithExpression = tuple[Fraction, str]  # its value, and how it was made
OPERATION_SIGNS = "+-*/"


@dataclass(frozen=True, slots=True)
class CountdownGame:
    """A move is (4 i + sign) n + j: part i, a sign of + - * /, part j, of n parts."""

    numbers: tuple[int, ...] = (3, 7, 8, 2)
    target: int = 24

    def __post_init__(self) -> None:
        if not 2 <= len(self.numbers) <= 8 or min(self.numbers) < 0:
            raise UsageError(f"countdown is played with 2 to 8 numbers, 0 or more; got {self.numbers}")

    @property
    def name(self) -> str:
        return "countdown"

    @property
    def players(self) -> int:
        return 1

    def start(self) -> tuple[NumberWithExpression, ...]:
        return tuple((Fraction(n), str(n)) for n in self.numbers)

    def moves(self, state: tuple[NumberWithExpression, ...]) -> Sequence[int]:
        n = len(state)
        return [(4 * i + s) * n + j for i in range(n) for s in range(4) for j in range(n) if _legal(state, i, s, j)]

    def play(self, state: tuple[NumberWithExpression, ...], move: int) -> tuple[NumberWithExpression, ...]:
        first, j = divmod(move, len(state))
        i, s = divmod(first, 4)
        if not (0 <= i < len(state) and _legal(state, i, s, j)):
            raise UsageError(f"{move} is no move with the numbers {', '.join(str(v) for v, _ in state)}")
        (a, said_a), (b, said_b) = state[i], state[j]
        value = a + b if s == 0 else a - b if s == 1 else a * b if s == 2 else a / b
        rest = tuple(part for k, part in enumerate(state) if k not in (i, j))
        return (*rest, (value, f"({said_a} {OPERATION_SIGNS[s]} {said_b})"))

    def outcome(self, state: tuple[NumberWithExpression, ...]) -> float | None:
        if len(state) > 1:
            return None
        gold = {"numbers": list(self.numbers), "target": self.target}
        return CountdownVerifier().grade(self.answer(state), gold).value

    def answer(self, reached: tuple[NumberWithExpression, ...]) -> str:
        """The expression, as an answer that a verifier reads."""
        return format_answer(reached[0][1], "tag")

    def move_text(self, state: tuple[NumberWithExpression, ...], move: int) -> str:
        value, expression = self.play(state, move)[-1]
        return f"{expression} = {value}\n"


def _legal(state: tuple[NumberWithExpression, ...], i: int, sign: int, j: int) -> bool:
    if OPERATION_SIGNS[sign] in "+*":
        return i < j  # a + b and b + a are one
    return i != j and (OPERATION_SIGNS[sign] == "-" or state[j][0] != 0)
