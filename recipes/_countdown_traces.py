"""Countdown worked by trying: each line is an expression with its values, and one that misses may be taken back.

`3, 7, 5>26=` may be answered by

    (3+7)*5:10:50 wait
    (3*7)+5:21:26
    #### (3*7)+5
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.errors import UsageError
from ponder.tasks import Countdown
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.split import stable_hash
from ponder.types import Problem

ALPHABET = "0123456789+-*/()#:,> =\nwait"
TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}"
PUZZLES: dict[str, Any] = {"largest": 9, "prompt": "{numbers}>{target}=", "forms": ("hash",)}
TAKEN_BACK = " wait"
MAX_VALUE = 999  # of what stands on the way


@dataclass(frozen=True)
class Part:
    """A number of the puzzle, or several joined."""

    value: int
    text: str
    values: tuple[int, ...] = ()  # of its operations, in the order in which they are written

    @property
    def bracketed(self) -> str:
        return f"({self.text})" if self.values else self.text

    def __str__(self) -> str:
        return ":".join([self.text, *map(str, self.values)])


@dataclass(frozen=True)
class CountdownTraces(Countdown):
    """Countdown whose worked answers are attempts drawn at random, none of them chosen for being right.

    After an attempt that misses, `backtracks` is the chance that it is taken back and another is made; else it is
    given as the answer, wrong as it is. With 0 there is a single attempt, which nothing follows from.
    """

    backtracks: float = 0.0
    max_attempts: int = 8

    def check(self) -> None:
        super().check()
        require_at_least(1, max_attempts=self.max_attempts)
        if not 0 <= self.backtracks <= 1:
            raise UsageError(f"backtracks is {self.backtracks}; it is a chance: give a number from 0 to 1")

    def gold(self, problem: Problem) -> str:
        """Attempts and an answer, which may be wrong: what a base model is to have read, not what it is to learn."""
        numbers, target = problem.answer["numbers"], problem.answer["target"]
        rng = random.Random(stable_hash(f"attempts {self.seed} {problem.id} {numbers} {target}"))
        lines: list[str] = []
        while True:
            attempt = random_attempt(numbers, rng)
            missed = attempt.value != target
            if not missed or len(lines) + 1 >= self.max_attempts or rng.random() >= self.backtracks:
                return "\n".join([*lines, str(attempt), f"#### {attempt.text}"])
            lines.append(f"{attempt}{TAKEN_BACK}")


def joined(a: Part, b: Part) -> Iterator[Part]:
    """All that two parts make, without fractions and negative numbers."""
    results = [("+", a.value + b.value), ("*", a.value * b.value)]
    if a.value >= b.value:
        results.append(("-", a.value - b.value))
    if b.value and a.value % b.value == 0:
        results.append(("/", a.value // b.value))
    for sign, value in results:
        if value <= MAX_VALUE:
            yield Part(value, f"{a.bracketed}{sign}{b.bracketed}", (*a.values, *b.values, value))


def random_attempt(numbers: Sequence[int], rng: random.Random) -> Part:
    """Parts joined at random until one is left."""
    parts = [Part(n, str(n)) for n in numbers]
    while len(parts) > 1:
        a, b = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        choices = [*joined(a, b)]
        if not choices:  # both are large
            return random_attempt(numbers, rng)
        parts.append(rng.choice(choices))
    return parts[0]
