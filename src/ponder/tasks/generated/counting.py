"""Count what a list or a text holds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import NumberTask, check_kinds
from ponder.tasks.generated.word_lists import WORDS

Kind = Literal["letter", "vowels", "word", "even", "above", "multiples", "distinct", "longest-run", "inversions"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class CountingItem(NamedTuple):
    kind: Kind
    things: tuple[str, ...]
    target: str = ""  # the letter, word or number that is asked about


@dataclass(frozen=True, kw_only=True)
class Counting(NumberTask[CountingItem]):
    """Lists of `length` words or numbers, and one thing to count in them."""

    LEVELS = (
        {"length": 5, "kinds": ("letter", "word", "even", "above")},
        {"length": 10, "kinds": KINDS},
        {"length": 20, "kinds": KINDS},
        {"length": 40, "kinds": KINDS},
    )

    length: int = 10
    kinds: tuple[Kind, ...] = KINDS

    def check(self) -> None:
        require_at_least(2, length=self.length)
        require_at_most(500, length=self.length)
        check_kinds(self.kinds, KINDS)

    @property
    def name(self) -> str:
        return "counting"

    def draw(self, rng: random.Random) -> CountingItem:
        kind = rng.choice(self.kinds)
        if kind in ("letter", "vowels", "word"):
            few = rng.sample(WORDS, min(max(2, self.length // 3), 40))
            items = tuple(rng.choice(few) for _ in range(self.length))
            return CountingItem(
                kind, items, {"letter": rng.choice("aeioulmnrst"), "word": rng.choice(few)}.get(kind, "")
            )
        highest = max(5, self.length // 2) if kind in ("distinct", "longest-run") else 99
        numbers = tuple(str(rng.randint(1, highest)) for _ in range(self.length))
        return CountingItem(
            kind, numbers, {"above": str(rng.randint(20, 80)), "multiples": str(rng.randint(3, 9))}.get(kind, "")
        )

    def key(self, item: CountingItem) -> str:
        return " ".join((item.kind, item.target, *item.things))

    def question(self, item: CountingItem) -> str:
        return _KINDS[item.kind][0].format(things=", ".join(item.things), text=" ".join(item.things), asked=item.target)

    def answer(self, item: CountingItem) -> str:
        return str(solve(item))

    def tags(self, item: CountingItem) -> dict[str, Any]:
        return {"kind": item.kind, "length": self.length}


def solve(item: CountingItem) -> int:
    return _KINDS[item.kind][1](list(item.things), item.target)


def _longest_run(items: list[str]) -> int:
    best = run = 1
    for before, now in pairwise(items):
        run = run + 1 if now == before else 1
        best = max(best, run)
    return best


def _inversions(numbers: list[int]) -> int:
    """Merge sort: each number taken from the right passes all that are left on the left."""
    if len(numbers) < 2:
        return 0
    left, right = sorted(numbers[: len(numbers) // 2]), sorted(numbers[len(numbers) // 2 :])
    passed = i = 0
    for number in right:
        while i < len(left) and left[i] <= number:
            i += 1
        passed += len(left) - i
    return passed + _inversions(numbers[: len(numbers) // 2]) + _inversions(numbers[len(numbers) // 2 :])


# What is asked, and how it is counted.
_KINDS: dict[Kind, tuple[str, Callable[[list[str], str], int]]] = {
    "letter": ('How often does the letter "{asked}" stand in this text?\n{text}', lambda t, x: "".join(t).count(x)),
    "vowels": (
        "How many vowels (a, e, i, o, u) are in this text?\n{text}",
        lambda t, x: len(re.findall("[aeiou]", "".join(t))),
    ),
    "word": ('How often does the word "{asked}" stand in this list? {things}', lambda t, x: t.count(x)),
    "even": ("How many of these numbers are even? {things}", lambda t, x: sum(int(n) % 2 == 0 for n in t)),
    "above": (
        "How many of these numbers are greater than {asked}? {things}",
        lambda t, x: sum(int(n) > int(x) for n in t),
    ),
    "multiples": (
        "How many of these numbers can be divided by {asked} without a remainder? {things}",
        lambda t, x: sum(int(n) % int(x) == 0 for n in t),
    ),
    "distinct": ("How many different numbers are in this list? {things}", lambda t, x: len(set(t))),
    "longest-run": (
        "How long is the longest run of equal numbers next to each other in this list? {things}",
        lambda t, x: _longest_run(t),
    ),
    "inversions": (
        "In how many pairs of places in this list does the larger number stand before the smaller one? {things}",
        lambda t, x: _inversions([int(n) for n in t]),
    ),
}  # fmt: skip
