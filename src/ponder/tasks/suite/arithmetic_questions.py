"""Arithmetic: expressions and short stories whose answer is computed as it is drawn."""

from __future__ import annotations

import random

from ponder.tasks.suite.question import SuiteQuestion, number_question

NAMES = ("Ada", "Boris", "Chen", "Dina", "Emil", "Fatou", "Goran", "Hana")
ITEMS_FOR_SALE = (
    ("pen", "pens"),
    ("book", "books"),
    ("lamp", "lamps"),
    ("plant", "plants"),
    ("mug", "mugs"),
    ("chair", "chairs"),
)


def expression(rng: random.Random) -> SuiteQuestion:
    a, b, c, d = (rng.randint(2, 19) for _ in range(4))
    shape = rng.choice(
        ("{a} + {b} * {c} - {d}", "({a} + {b}) * {c} - {d}", "{a} * {b} - {c} * {d}", "{a} * ({b} - {c}) + {d}")
    )
    text = shape.format(a=a, b=b, c=c, d=d)
    values = {
        "{a} + {b} * {c} - {d}": a + b * c - d,
        "({a} + {b}) * {c} - {d}": (a + b) * c - d,
        "{a} * {b} - {c} * {d}": a * b - c * d,
        "{a} * ({b} - {c}) + {d}": a * (b - c) + d,
    }
    return number_question("expression", f"What is {text}?", values[shape])


def shopping(rng: random.Random) -> SuiteQuestion:
    (_, first), (_, second) = rng.sample(ITEMS_FOR_SALE, 2)
    n, m, p, q = rng.randint(2, 9), rng.randint(2, 9), rng.randint(3, 15), rng.randint(3, 15)
    payment = (n * p + m * q) // 50 * 50 + 50
    text = (
        f"{rng.choice(NAMES)} buys {n} {first} at {p} coins each and {m} {second} at {q} coins each, and pays with"
        f" {payment} coins. How many coins come back?"
    )
    return number_question("shopping", text, payment - n * p - m * q)


def sharing(rng: random.Random) -> SuiteQuestion:
    people, each, left = rng.randint(3, 9), rng.randint(4, 15), rng.randint(0, 2)
    eaten = rng.randint(2, 9)
    total = people * each + left + eaten
    text = (
        f"A box holds {total} nuts. {eaten} of them are eaten. The rest are shared equally among {people} children,"
        " and as many whole nuts as possible are given out. How many nuts are left in the box?"
    )
    return number_question("sharing", text, left)


def percentage(rng: random.Random) -> SuiteQuestion:
    base = 20 * rng.randint(3, 25)
    off, tax = rng.choice((5, 10, 15, 20, 25, 30, 40)), rng.choice((2, 4, 6, 8, 10))
    while base * (100 - off) % 100:
        base += 20
    text = f"A coat costs {base} coins. It is sold at {off} % off, and then wrapping adds {tax} coins. What is paid?"
    return number_question("percentage", text, base * (100 - off) // 100 + tax)


def hours(rng: random.Random) -> SuiteQuestion:
    start, minutes = rng.randint(0, 23) * 60 + rng.randint(0, 59), rng.randint(65, 600)
    end = (start + minutes) % (24 * 60)
    text = (
        f"A train leaves at {start // 60:02d}:{start % 60:02d} and arrives at {end // 60:02d}:{end % 60:02d}, less than"
        " a day later. How many minutes does it travel?"
    )
    return number_question("hours", text, minutes)


GENERATORS = (expression, shopping, sharing, percentage, hours)
