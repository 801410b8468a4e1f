"""A task for the smallest models: easy to work out digit by digit, hard to see at a glance."""

import random
from dataclasses import dataclass
from typing import Literal

from ponder.tasks.generated.generated_task import GeneratedTask, require_at_least
from ponder.tasks.split import hashes_to_test
from ponder.types import Problem, user_messages
from ponder.verify import FinalText

Item = tuple[int, tuple[tuple[str, int], ...]]
TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}"


@dataclass(frozen=True)
class LastDigits(GeneratedTask[Item]):
    """Last digits from left to right: of `3*7+5` first 1, then 6. By factors of 3, 7 and 9 no digit is forgotten.

    Answered `3*7+5=6`, plain; or worked, with every digit on the way, `3*7+5:16;=6`.
    """

    operations: int = 5
    form: Literal["plain", "worked"] = "plain"

    def check(self) -> None:
        require_at_least(1, operations=self.operations)

    @property
    def name(self) -> str:
        return f"clock-{self.form}"

    @property
    def verifier(self) -> FinalText:
        return FinalText(("bare",))

    def draw(self, rng: random.Random) -> Item:
        def one() -> tuple[str, int]:
            return ("*", rng.choice((3, 7, 9))) if rng.random() < 0.5 else ("+", rng.randrange(10))

        return rng.randrange(10), tuple(one() for _ in range(self.operations))

    def key(self, item: Item) -> str:
        return str(item[0]) + "".join(f"{sign}{number}" for sign, number in item[1])

    def problem(self, item: Item, id: str) -> Problem:
        digits = [item[0]]
        for sign, number in item[1]:
            digits.append((digits[-1] * number if sign == "*" else digits[-1] + number) % 10)
        way = "".join(map(str, digits[1:]))
        answer = f":{way};={digits[-1]}" if self.form == "worked" else f"={digits[-1]}"
        return Problem(id, user_messages(self.key(item), self.system), answer)

    def gold(self, problem: Problem) -> str:
        return str(problem.answer)

    def _is_test_item(self, item: Item) -> bool:
        """Worked or plain, a problem is on the same side."""
        return hashes_to_test(f"clock {self.key(item)}", tenths=1)
