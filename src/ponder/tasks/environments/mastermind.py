"""Mastermind: find a hidden code by guessing; each guess is answered by how near it is."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ponder.protocols import Environment
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.types import Action, Problem, Turn, user_messages


@dataclass(frozen=True, kw_only=True)
class Mastermind(EnvironmentTask[str]):
    """A code of `length` digits from 1 to `digits`. The reward is 1 for finding it within `max_turns` guesses."""

    LEVELS = (
        {"digits": 2, "length": 2, "max_turns": 3},
        {"digits": 3, "length": 2, "max_turns": 4},
        {"digits": 4, "length": 3, "max_turns": 6},
        {"digits": 6, "length": 4, "max_turns": 8},
    )

    digits: int = 4
    length: int = 3
    max_turns: int = 6
    show_rules: bool = True  # in the first message; a model that was trained on the game needs none

    def check(self) -> None:
        require_at_least(1, length=self.length, max_turns=self.max_turns)
        require_at_least(2, digits=self.digits)
        require_at_most(9, digits=self.digits)
        require_at_most(6, length=self.length)

    @property
    def name(self) -> str:
        return "mastermind"

    def draw(self, rng: random.Random) -> str:
        return "".join(str(rng.randint(1, self.digits)) for _ in range(self.length))

    def key(self, item: str) -> str:
        return item

    def problem(self, item: str, id: str) -> Problem:
        rules = (
            f"I have a code of {self.length} digits from 1 to {self.digits}. Find it in at most {self.max_turns}"
            " guesses. Answer with a guess and nothing else. I say how many of its digits are right and in place"
            " (black), and how many others are in the code but in another place (white)."
        )
        text = rules if self.show_rules else f"{self.length}/{self.digits}"
        return Problem(id, user_messages(text, self.system), item, {"digits": self.digits, "length": self.length})

    def environment(self) -> Environment:
        return MastermindGame(self.digits, self.length, self.max_turns)


@dataclass
class MastermindGame:
    """One game. The code is the problem's answer."""

    digits: int
    length: int
    max_turns: int
    code: str = ""
    guesses: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    turns: int = 0

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.code = problem.answer
        return Turn()

    def act(self, action: Action) -> Turn:
        self.turns += 1
        guess = re.sub(r"[\s,]", "", action.text)
        if not re.fullmatch(f"[1-{self.digits}]{{{self.length}}}", guess):
            return self._reply(f"Not a guess: {self.length} digits from 1 to {self.digits}.", "no guess")
        if guess == self.code:
            return Turn(reward=1.0, done=True, reason=f"found in {self.turns}")
        black, white = compare(guess, self.code)
        self.guesses.append((guess, (black, white)))
        return self._reply(f"black {black}, white {white}", "not found")

    def _reply(self, text: str, reason: str) -> Turn:
        if self.turns >= self.max_turns:
            return Turn(reward=0.0, done=True, reason=f"{reason} in {self.turns} turns")
        return Turn(({"role": "user", "content": text},))

    def gold(self) -> str:
        """The first code, in order, that agrees with every answer so far."""
        codes = map("".join, itertools.product("123456789"[: self.digits], repeat=self.length))
        return next(code for code in codes if all(compare(guess, code) == reply for guess, reply in self.guesses))

    def copy(self) -> MastermindGame:
        return MastermindGame(self.digits, self.length, self.max_turns, self.code, list(self.guesses), self.turns)

    def close(self) -> None:
        pass


def compare(guess: str, code: str) -> tuple[int, int]:
    """Digits in their place, and others that the code has in another place."""
    black = sum(g == c for g, c in zip(guess, code, strict=True))
    both: Counter[Any] = Counter(guess) & Counter(code)
    return black, both.total() - black
