"""Word problems that are linear equations: a template draws the unknowns, tells of them, and asks for one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from ponder.errors import TaskError
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import NumberTask
from ponder.tasks.generated.word_lists import NAMES

Equation = tuple[int, ...]  # the coefficient of each unknown, then what their sum comes to


class Story(NamedTuple):
    """A problem in words, the same as equations, and which of the unknowns is asked for."""

    template: str
    text: str
    equations: tuple[Equation, ...]
    asked: int = 0


@dataclass(frozen=True, kw_only=True)
class Algebra(NumberTask[Story]):
    """Stories with so many `unknowns` (1 to 3), each from 1 to `largest`."""

    LEVELS = (
        {"unknowns": 1, "largest": 12},
        {"unknowns": 1, "largest": 60},
        {"unknowns": 2, "largest": 20},
        {"unknowns": 2, "largest": 100},
        {"unknowns": 3, "largest": 30},
        {"unknowns": 3, "largest": 200},
    )

    unknowns: int = 2
    largest: int = 30

    def check(self) -> None:
        require_at_least(1, unknowns=self.unknowns)
        require_at_most(3, unknowns=self.unknowns)
        require_at_least(5, largest=self.largest)

    @property
    def name(self) -> str:
        return "algebra"

    def draw(self, rng: random.Random) -> Story:
        return rng.choice(TEMPLATES[self.unknowns])(rng, self.largest)

    def key(self, item: Story) -> str:
        """Without the names: another name does not make another problem."""
        return f"{item.template} {item.equations} {item.asked}"

    def question(self, item: Story) -> str:
        return item.text

    def answer(self, item: Story) -> str:
        return str(solve(item.equations)[item.asked])

    def tags(self, item: Story) -> dict[str, Any]:
        return {"template": item.template, "unknowns": len(item.equations)}


def solve(equations: Sequence[Equation]) -> list[Fraction]:
    """The unknowns, by Gauss-Jordan elimination in exact fractions."""
    rows = [[Fraction(x) for x in equation] for equation in equations]
    for i in range(len(rows)):
        pivot = next((k for k in range(i, len(rows)) if rows[k][i]), None)
        if pivot is None:
            raise TaskError(f"the equations {list(equations)} do not have one solution; change the template")
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for k, row in enumerate(rows):
            if k != i:
                rows[k] = [x - row[i] * y for x, y in zip(row, rows[i], strict=True)]
    return [row[-1] for row in rows]


# ---- One unknown. `x` is drawn first, so that every answer is a whole number.


def _thought_of(rng: random.Random, largest: int) -> Story:
    x, times, plus = rng.randint(1, largest), rng.randint(2, 9), rng.randint(1, largest)
    total = times * x + plus
    text = (
        f"{_name(rng)} thinks of a number, multiplies it by {times} and adds {plus}. The result is {total}."
        " What was the number?"
    )
    return Story("thought-of", text, ((times, total - plus),))


def _bag(rng: random.Random, largest: int) -> Story:
    x, count, bag = rng.randint(1, largest), rng.randint(2, 12), rng.randint(1, 5)
    text = (
        f"{_name(rng)} buys {count} {rng.choice(THINGS)} at the same price each, and a bag for ${bag}, and pays"
        f" ${count * x + bag} in all. How many dollars is the price of one?"
    )
    return Story("bag", text, ((count, count * x),))


def _age(rng: random.Random, largest: int) -> Story:
    """x + later = times * (x - earlier)"""
    while True:
        times, earlier, past = rng.randint(2, 4), rng.randint(1, largest), rng.randint(1, largest)
        later = times * past - (past + earlier)
        if 1 <= later <= 60:
            break
    text = (
        f"In {_years(later)} {_name(rng)} will be {times} times as old as {_years(earlier)} ago. How many years old"
        " is that person now?"
    )
    return Story("age", text, ((1 - times, -times * earlier - later),))


def _rectangle(rng: random.Random, largest: int) -> Story:
    width, times, plus = rng.randint(1, largest), rng.randint(1, 4), rng.randint(1, 10)
    around = 2 * (width + times * width + plus)
    length = f"{plus} cm more than " + ("its width" if times == 1 else f"{times} times its width")
    text = f"The length of a rectangle is {length}, and its perimeter is {around} cm. How many cm is its width?"
    return Story("rectangle", text, ((2 * (1 + times), around - 2 * plus),))


def _consecutive(rng: random.Random, largest: int) -> Story:
    x, count = rng.randint(1, largest), rng.randint(3, 9)
    total = count * x + count * (count - 1) // 2
    text = f"The sum of {count} consecutive integers is {total}. What is the smallest of them?"
    return Story("consecutive", text, ((count, total - count * (count - 1) // 2),))


def _meeting(rng: random.Random, largest: int) -> Story:
    hours, one, two = rng.randint(1, max(2, largest // 5)), rng.randint(20, 90), rng.randint(20, 90)
    text = (
        f"Two trains start at the same time from towns {(one + two) * hours} km apart and travel towards each other,"
        f" one at {one} km/h and the other at {two} km/h. After how many hours do they meet?"
    )
    return Story("meeting", text, ((one + two, (one + two) * hours),))


# ---- Two unknowns.


def _tickets(rng: random.Random, largest: int) -> Story:
    adults, children = rng.randint(1, largest), rng.randint(1, largest)
    cheap = rng.randint(2, 9)
    dear = cheap + rng.randint(1, 9)
    text = (
        f"A theatre sells {adults + children} tickets and takes ${dear * adults + cheap * children}. An adult's ticket"
        f" costs ${dear} and a child's ${cheap}. How many adults' tickets were sold?"
    )
    return Story("tickets", text, ((1, 1, adults + children), (dear, cheap, dear * adults + cheap * children)))


def _heads(rng: random.Random, largest: int) -> Story:
    hens, rabbits = rng.randint(1, largest), rng.randint(1, largest)
    target = rng.randrange(2)
    text = (
        f"A farm has hens and rabbits, with {hens + rabbits} heads and {2 * hens + 4 * rabbits} legs in all."
        f" How many {('hens', 'rabbits')[target]} are there?"
    )
    return Story("heads", text, ((1, 1, hens + rabbits), (2, 4, 2 * hens + 4 * rabbits)), target)


def _two_ages(rng: random.Random, largest: int) -> Story:
    """x - y = older;  x + later = times * (y + later)"""
    while True:
        y, times, later = rng.randint(1, largest), rng.randint(2, 4), rng.randint(1, 10)
        older = times * (y + later) - later - y
        if older <= 60:
            break
    one, two = rng.sample(NAMES, 2)
    target = rng.randrange(2)
    text = (
        f"{one} is {_years(older)} older than {two}. In {_years(later)} {one} will be {times} times as old as {two}."
        f" How many years old is {(one, two)[target]} now?"
    )
    return Story("two-ages", text, ((1, -1, older), (1, -times, (times - 1) * later)), target)


def _receipts(count: int) -> Callable[[random.Random, int], Story]:
    def receipts(rng: random.Random, largest: int) -> Story:
        """As many purchases as goods, none of which follows from the others."""
        while True:
            prices = [rng.randint(1, largest) for _ in range(count)]
            bought = [[rng.randint(1, 7) for _ in range(count)] for _ in range(count)]
            if _determinant(bought):
                break
        goods = rng.sample(THINGS, count)
        equations = tuple((*row, sum(n * p for n, p in zip(row, prices, strict=True))) for row in bought)
        bought_phrases = [
            _join_phrases([_counted_things(n, name) for n, name in zip(row[:-1], goods, strict=True)])
            for row in equations
        ]
        lines = [f"{phrase} cost ${row[-1]}." for phrase, row in zip(bought_phrases, equations, strict=True)]
        target = rng.randrange(count)
        text = f"{' '.join(lines)} How many dollars does one {_singular(goods[target])} cost?"
        return Story(f"receipts-{count}", text, equations, target)

    return receipts


# ---- Three unknowns.


def _shares(rng: random.Random, largest: int) -> Story:
    """x - y = more;  z = times * x;  x + y + z = total"""
    y, more, times = rng.randint(1, largest), rng.randint(1, largest), rng.randint(2, 4)
    x = y + more
    one, two, three = rng.sample(NAMES, 3)
    things = rng.choice(THINGS)
    target = rng.randrange(3)
    text = (
        f"{one}, {two} and {three} have {x + y + times * x} {things} together. {one} has {more} more than {two}, and"
        f" {three} has {times} times as many as {one}. How many {things} does {(one, two, three)[target]} have?"
    )
    total = x + y + times * x
    return Story("shares", text, ((1, -1, 0, more), (times, 0, -1, 0), (1, 1, 1, total)), target)


def _pairs(rng: random.Random, largest: int) -> Story:
    x, y, z = (rng.randint(1, largest) for _ in range(3))
    target = rng.randrange(3)
    text = (
        f"Three numbers are given. The first and the second add up to {x + y}, the second and the third to {y + z}, the"
        f" first and the third to {x + z}. What is the {('first', 'second', 'third')[target]} number?"
    )
    return Story("pairs", text, ((1, 1, 0, x + y), (0, 1, 1, y + z), (1, 0, 1, x + z)), target)


def _angles(rng: random.Random, largest: int) -> Story:
    """A triangle: x = times * y;  z = y + more;  x + y + z = 180"""
    while True:
        times, y = rng.randint(1, 4), rng.randint(2, 80)
        more = 180 - (times + 2) * y
        if 1 <= more <= 90:
            break
    target = rng.randrange(3)
    first = "as large as the second" if times == 1 else f"{times} times as large as the second"
    text = (
        f"The first angle of a triangle is {first}, and the third is {more} degrees larger than the second. How many"
        f" degrees is the {('first', 'second', 'third')[target]} angle?"
    )
    return Story("angles", text, ((1, -times, 0, 0), (0, -1, 1, more), (1, 1, 1, 180)), target)


TEMPLATES: dict[int, tuple[Callable[[random.Random, int], Story], ...]] = {
    1: (_thought_of, _bag, _age, _rectangle, _consecutive, _meeting),
    2: (_tickets, _heads, _two_ages, _receipts(2)),
    3: (_shares, _pairs, _angles, _receipts(3)),
}

THINGS = ("apples", "books", "candles", "lamps", "mugs", "pens", "plates", "scarves", "spoons", "stamps", "towels")


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES)


def _years(count: int) -> str:
    return "1 year" if count == 1 else f"{count} years"


def _singular(plural: str) -> str:
    return {"scarves": "scarf"}.get(plural, plural.removesuffix("s"))


def _counted_things(count: int, plural: str) -> str:
    return f"{count} {_singular(plural) if count == 1 else plural}"


def _join_phrases(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]])


def _determinant(rows: list[list[int]]) -> int:
    """By the first row: the systems here have two or three unknowns."""
    if len(rows) == 1:
        return rows[0][0]
    minors = ([row[:i] + row[i + 1 :] for row in rows[1:]] for i in range(len(rows)))
    return sum((-1) ** i * rows[0][i] * _determinant(minor) for i, minor in enumerate(minors))
