"""Mastermind: find a hidden code by guessing; each guess is answered by how near it is."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ponder.protocols import Environment
from ponder.tasks.environments.answer_text import answer_text
from ponder.tasks.environments.environment_task import EnvironmentTask
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.types import Action, Problem, Turn, user_messages


class CodeWithClues(NamedTuple):
    code: str
    clues: tuple[str, ...]  # guesses that are answered before the game begins


@dataclass(frozen=True, kw_only=True)
class Mastermind(EnvironmentTask[CodeWithClues]):
    """Mastermind: find a code by guesses, each answered by how near it is.

    The code has `length` digits from 1 to `digits`. The reward is 1 for finding it within `max_turns` guesses. The
    first message has so many random guesses with their answers as `clues`.
    """

    LEVELS = (  # with as many turns as gold needs at worst, or one more
        {"digits": 4, "length": 2, "clues": 2, "max_turns": 4},
        {"digits": 6, "length": 3, "clues": 2, "max_turns": 7},
        {"digits": 6, "length": 4, "clues": 1, "max_turns": 8},
        {"digits": 6, "length": 4, "clues": 0, "max_turns": 10},
    )

    digits: int = 6
    length: int = 4
    clues: int = 0
    max_turns: int = 10
    show_rules: bool = True  # in the first message; a model that was trained on the game needs none
    max_turn_tokens: int | None = 32

    def check(self) -> None:
        require_at_least(1, length=self.length, max_turns=self.max_turns)
        require_at_least(2, digits=self.digits)
        require_at_most(9, digits=self.digits)
        require_at_most(6, length=self.length)
        require_at_least(0, clues=self.clues)
        require_at_most(10, clues=self.clues)

    @property
    def name(self) -> str:
        return "mastermind"

    def draw(self, rng: random.Random) -> CodeWithClues:
        code, *clues = (
            "".join(str(rng.randint(1, self.digits)) for _ in range(self.length)) for _ in range(1 + self.clues)
        )
        return CodeWithClues(code, tuple(clues))

    def key(self, item: CodeWithClues) -> str:
        """The same for the clues in another order."""
        return " ".join([item.code, *sorted(item.clues)])

    def problem(self, item: CodeWithClues, id: str) -> Problem:
        rules = (
            f"I have a code of {self.length} digits from 1 to {self.digits}. Find it in at most {self.max_turns}"
            " guesses. Answer with a guess and nothing else. I say how many of its digits are right and in place"
            " (black), and how many others are in the code but in another place (white)."
        )
        text = rules if self.show_rules else f"{self.length}/{self.digits}"
        clues = [f"{clue}: {reply_text(*compare(clue, item.code))}" for clue in item.clues]
        answer = {"code": item.code, "clues": list(item.clues)}
        tags = {"digits": self.digits, "length": self.length}
        return Problem(id, user_messages("\n".join([text, *clues]), self.system), answer, tags)

    def environment(self) -> Environment:
        return MastermindGame(self.digits, self.length, self.max_turns)


@dataclass
class MastermindGame:
    """One game. The problem's answer has the code and the guesses that were clues."""

    digits: int
    length: int
    max_turns: int
    code: str = ""
    guesses: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    turns: int = 0

    def reset(self, problem: Problem, seed: int) -> Turn:
        self.code, self.turns = problem.answer["code"], 0
        self.guesses = [(clue, compare(clue, self.code)) for clue in problem.answer["clues"]]
        return Turn()

    def act(self, action: Action) -> Turn:
        self.turns += 1
        guess = re.sub(r"[\s,]", "", answer_text(action))
        if not re.fullmatch(f"[1-{self.digits}]{{{self.length}}}", guess):
            return self._reply(f"Not a guess: {self.length} digits from 1 to {self.digits}.", "no guess")
        if guess == self.code:
            return Turn(reward=1.0, done=True, reason=f"found in {self.turns}")
        black, white = compare(guess, self.code)
        self.guesses.append((guess, (black, white)))
        return self._reply(reply_text(black, white), "not found")

    def _reply(self, text: str, reason: str) -> Turn:
        if self.turns >= self.max_turns:
            return Turn(reward=0.0, done=True, reason=f"{reason} in {self.turns} turns")
        return Turn(({"role": "user", "content": text},))

    def gold(self) -> str:
        """The first code, in order, that agrees with every answer so far."""
        return next(
            code
            for code in all_codes(self.digits, self.length)
            if all(compare(guess, code) == reply for guess, reply in self.guesses)
        )

    def random_action(self, rng: random.Random) -> str:
        return "".join(str(rng.randint(1, self.digits)) for _ in range(self.length))

    def copy(self) -> MastermindGame:
        return MastermindGame(self.digits, self.length, self.max_turns, self.code, list(self.guesses), self.turns)

    def close(self) -> None:
        pass


def all_codes(digits: int, length: int) -> Iterator[str]:
    return map("".join, itertools.product("123456789"[:digits], repeat=length))


def reply_text(black: int, white: int) -> str:
    return f"black {black}, white {white}"


def compare(guess: str, code: str) -> tuple[int, int]:
    """Digits in their place, and others that the code has in another place."""
    black = sum(g == c for g, c in zip(guess, code, strict=True))
    both: Counter[Any] = Counter(guess) & Counter(code)
    return black, both.total() - black
