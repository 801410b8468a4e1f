"""Countdown worked by trying: each line is an attempt with its running values, and a miss may be taken back.

`6,2,3>5=` may be answered by

    6+2=8+3=11:5 wait
    6+2=8-3=5:5
    #### 6+2-3

What follows the colon is the target, so that value and target stand side by side where they are compared.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.tasks import Countdown
from ponder.tasks.generated.countdown import Puzzle
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.split import stable_hash
from ponder.types import Problem

ALPHABET = "0123456789+-*/()#:,> =\nwait"
TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}"
PUZZLES: dict[str, Any] = {"largest": 7, "prompt": "{numbers}>{target}=", "forms": ("hash",)}
TAKEN_BACK = " wait"
CHECK = ":"  # between an attempt's value and the target that it is compared with


def small_model(context: int, seed: int, letters: str = "", weight_std: float = 0.02) -> ScratchModel:
    """About 0.2 million weights; `letters` beside those that puzzles and attempts have. `weight_std` is that of the
    first weights."""
    alphabet = "".join(dict.fromkeys(ALPHABET + letters))
    return ScratchModel(alphabet, width=64, layers=2, context=context, seed=seed, weight_std=weight_std)


@dataclass(frozen=True)
class ChainCountdown(Countdown):
    """Countdown by plus and minus between the numbers as they stand, of which there are `fewest` to `numbers`."""

    fewest: int = 3

    def check(self) -> None:
        super().check()
        require_at_least(2, fewest=self.fewest)
        if self.fewest > self.numbers:
            raise UsageError(f"fewest is {self.fewest} and numbers {self.numbers}: give at most as many")

    def draw(self, rng: random.Random) -> Puzzle:
        while True:
            numbers = tuple(rng.randint(1, self.largest) for _ in range(rng.randint(self.fewest, self.numbers)))
            target = random_attempt(numbers, rng).values[-1]
            if target > 0:
                return numbers, target

    def problem(self, item: Puzzle, id: str) -> Problem:
        numbers, target = item
        text = self.prompt.format(numbers=",".join(map(str, numbers)), target=target)
        answer = {"numbers": list(numbers), "target": target}
        return self.make_problem(id, text, answer, {"numbers": len(numbers)})


@dataclass(frozen=True)
class CountdownTraces(ChainCountdown):
    """The same puzzles with worked answers that are attempts. One is a solution with the chance `hits`, else random:
    where hits are rare, a base learns to write attempts long before it learns to compare them with the target.

    After an attempt that misses, `backtracks` is the chance that it is taken back and another is made; else it is
    given as the answer, wrong as it is. With 0 there is a single attempt, which nothing follows from. With `checks`
    every attempt is followed by the target.
    """

    backtracks: float = 0.0
    checks: bool = False
    hits: float = 0.3
    max_attempts: int = 6

    def check(self) -> None:
        super().check()
        require_at_least(1, max_attempts=self.max_attempts)
        for name in ("backtracks", "hits"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it is a chance: give a number from 0 to 1")

    def gold(self, problem: Problem) -> str:
        """Attempts and an answer, which may be wrong: what a base model is to have read, not what it is to learn."""
        numbers, target = problem.answer["numbers"], problem.answer["target"]
        rng = random.Random(stable_hash(f"attempts {self.seed} {problem.id} {numbers} {target}"))
        lines: list[str] = []
        while True:
            attempt = (solution if rng.random() < self.hits else random_attempt)(numbers, rng, target)
            missed = attempt.values[-1] != target
            line = f"{attempt}{CHECK}{target}" if self.checks else str(attempt)
            if not missed or len(lines) + 1 >= self.max_attempts or rng.random() >= self.backtracks:
                return "\n".join([*lines, line, f"#### {attempt.expression}"])
            lines.append(f"{line}{TAKEN_BACK}")


@dataclass(frozen=True)
class Attempt:
    numbers: tuple[int, ...]
    signs: str  # between them
    values: tuple[int, ...]  # after each operation

    @property
    def expression(self) -> str:
        rest = (f"{sign}{n}" for sign, n in zip(self.signs, self.numbers[1:], strict=True))
        return f"{self.numbers[0]}{''.join(rest)}"

    def __str__(self) -> str:
        steps = (f"{sign}{n}={v}" for sign, n, v in zip(self.signs, self.numbers[1:], self.values, strict=True))
        return f"{self.numbers[0]}{''.join(steps)}"


def make_attempt(numbers: Sequence[int], signs: str) -> Attempt:
    total, values = numbers[0], list[int]()
    for number, sign in zip(numbers[1:], signs, strict=True):
        total += number if sign == "+" else -number
        values.append(total)
    return Attempt(tuple(numbers), signs, tuple(values))


def random_attempt(numbers: Sequence[int], rng: random.Random, target: int | None = None) -> Attempt:
    """Random signs between the numbers, whatever the target."""
    return make_attempt(numbers, "".join(rng.choice("+-") for _ in numbers[1:]))


def solution(numbers: Sequence[int], rng: random.Random, target: int) -> Attempt:
    """One of the attempts that reach the target, of which every puzzle has one."""
    attempts = (make_attempt(numbers, "".join(signs)) for signs in product("+-", repeat=len(numbers) - 1))
    return rng.choice([attempt for attempt in attempts if attempt.values[-1] == target])
