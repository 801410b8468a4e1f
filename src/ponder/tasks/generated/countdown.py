"""Reach a target from given numbers with + - * / (the TinyZero task), and a solver for it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from ponder import verify
from ponder.errors import TaskError
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.generated.generated_task import GeneratedTask, require_at_least, require_at_most
from ponder.types import Problem
from ponder.verify import AnswerForm
from ponder.verify.answers.style import AnswerSpec

Puzzle = tuple[tuple[int, ...], int]  # numbers, target

MOST_NUMBERS = 6  # the solver's work grows about thirtyfold with each number


@dataclass(frozen=True)
class Countdown(StyledTask, GeneratedTask[Puzzle]):
    """Numbers from 1 to `largest` and a target from 1 to `highest` that an expression over all of them reaches."""

    ANSWER_SPEC = AnswerSpec("the expression", ("tag", "boxed", "line"), separator=" ")
    DEFAULT_STYLE = "answer"
    LEVELS = (
        {"numbers": 2, "largest": 20, "highest": 50},
        {"numbers": 3, "largest": 20, "highest": 100},
        {"numbers": 4, "largest": 50, "highest": 100},
        {"numbers": 5, "largest": 50, "highest": 100},
    )

    numbers: int = 3
    largest: int = 20
    highest: int = 100
    use_all: bool = True
    prompt: str = "Use the numbers {numbers} {times} with + - * / and brackets to make {target}."
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    def check(self) -> None:
        require_at_least(2, numbers=self.numbers, largest=self.largest, highest=self.highest)
        require_at_most(MOST_NUMBERS, numbers=self.numbers)
        require_at_most(10**6, largest=self.largest, highest=self.highest)

    @property
    def name(self) -> str:
        return "countdown"

    @property
    def verifier(self) -> verify.CountdownVerifier:
        return verify.CountdownVerifier(self.use_all, self.answer_forms)

    def draw(self, rng: random.Random) -> Puzzle:
        while True:  # a good part of all draws will do, 1 * 1 * 1 = 1 at the least
            numbers = tuple(rng.randint(1, self.largest) for _ in range(self.numbers))
            target = _random_target(rng, numbers)
            if target.denominator == 1 and 1 <= target <= self.highest:
                return numbers, int(target)

    def key(self, item: Puzzle) -> str:
        numbers, target = item
        return f"{sorted(numbers)} -> {target}"

    def problem(self, item: Puzzle, id: str) -> Problem:
        numbers, target = item
        times = "exactly once each" if self.use_all else "at most once each"
        text = self.prompt.format(numbers=", ".join(map(str, numbers)), target=target, times=times)
        answer = {"numbers": list(numbers), "target": target}
        return self.make_problem(id, text, answer, {"numbers": self.numbers})

    def solution(self, problem: Problem) -> str:
        """One expression over all the numbers that solves it."""
        expression = solve(problem.answer["numbers"], problem.answer["target"])
        if expression is None:
            raise TaskError(f"problem {problem.id!r} has no solution: {problem.answer}; leave it out")
        return expression

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(self.solution(problem))


def _random_target(rng: random.Random, numbers: Sequence[int]) -> Fraction:
    """Join two at random until one is left; a division that does not come out even is an addition."""
    values = [Fraction(n) for n in numbers]
    while len(values) > 1:
        a, b = (values.pop(rng.randrange(len(values))) for _ in range(2))
        sign = rng.choice("+-*/")
        if sign == "/" and (b == 0 or (a / b).denominator != 1):
            sign = "+"
        values.append({"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a / b)
    return values[0]


@dataclass(frozen=True, slots=True)
class _Part:
    value: Fraction
    text: str
    sign: str = ""  # the last operation applied; none for a given number


def solve(numbers: Sequence[int], target: int) -> str | None:
    """An expression that uses each number once and equals the target; None if there is none."""
    return _search([_Part(Fraction(n), str(n)) for n in numbers], Fraction(target), set())


def _search(parts: list[_Part], target: Fraction, failed: set[tuple[Fraction, ...]]) -> str | None:
    if len(parts) == 1:
        return parts[0].text if parts[0].value == target else None
    state = tuple(sorted(part.value for part in parts))
    if state in failed:  # the same values by another road: no target from here either
        return None
    for i, j in permutations(range(len(parts)), 2):
        rest = [part for k, part in enumerate(parts) if k not in (i, j)]
        for joined in _combinations(parts[i], parts[j], commute=i < j):
            if expression := _search([*rest, joined], target, failed):
                return expression
    failed.add(state)
    return None


def _combinations(a: _Part, b: _Part, commute: bool) -> Iterator[_Part]:
    if commute:  # a + b and b + a are one
        yield _Part(a.value + b.value, f"{a.text} + {b.text}", "+")
        yield _Part(a.value * b.value, f"{_with_brackets(a, '+-')} * {_with_brackets(b, '+-')}", "*")
    yield _Part(a.value - b.value, f"{a.text} - {_with_brackets(b, '+-')}", "-")
    if b.value:
        yield _Part(a.value / b.value, f"{_with_brackets(a, '+-')} / {_with_brackets(b, '+-*/')}", "/")


def _with_brackets(part: _Part, signs: str) -> str:
    return f"({part.text})" if part.sign and part.sign in signs else part.text
