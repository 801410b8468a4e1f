"""Mutate problems: other numbers with the answer recomputed, other names, other units.

Numbers are changed only where the question's own numbers, each used once, give the answer in exactly one way with
+ - * /: then that way is taken for the template. It may still be the wrong one by chance, so what comes out is to be
solved before it is believed. Names and units change nothing but words, and keep the answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ponder.tasks.question_identity import bare_question
from ponder.tasks.synthetic.formula import Formula, NoExactValue
from ponder.tasks.synthetic.problem_rows import domain_of, synthetic_problem
from ponder.types import Problem
from ponder.verify.numeric.numbers import parse_plain_number

MIN_NUMBERS, MAX_NUMBERS = 2, 4  # numbers in a question whose template is looked for
MAX_NUMBER_DRAWS = 200  # draws of new numbers
TEST_POINTS = ((7, 11, 13, 29), (17, 3, 23, 5), (2, 31, 19, 37))  # where two ways of reaching an answer are told apart

# A whole number by itself: no part of a decimal, a fraction, a date, an ordinal or a word.
_NUMBER = re.compile(r"(?<![\w.,/:^-])(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]{1,6})(?![\w/:%]|[.,][0-9])")
# Words that hide a number.
_NUMBER_WORDS = re.compile(
    r"\b(?:half|halves|third|thirds|quarter|quarters|fourth|fifth|twice|thrice|double|doubles|triple|dozen|dozens|pair"
    r"|pairs|percent|couple|week|weeks|year|years|hour|hours|minute|minutes|day|days|month|months|one|two|three|four"
    r"|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand|once|each other|squared?|even|odd|prime|average"
    r"|remainder|left over)\b|%",
    re.IGNORECASE,
)
FEMALE_NAMES = (
    "Alice",
    "Anna",
    "Clara",
    "Emma",
    "Fatima",
    "Julia",
    "Lena",
    "Maria",
    "Nora",
    "Olivia",
    "Priya",
    "Sofia",
)
MALE_NAMES = (
    "Adam",
    "Carlos",
    "David",
    "Ethan",
    "Felix",
    "Hassan",
    "Ivan",
    "James",
    "Leo",
    "Noah",
    "Omar",
    "Peter",
    "Tom",
)
# Words of which one may stand for another: none is a multiple of another in any problem that has only one of them.
INTERCHANGEABLE_WORDS = (
    ("dollars", "euros", "francs"),
    ("apples", "oranges", "pears", "plums"),
    ("pencils", "pens", "markers", "crayons"),
    ("books", "magazines", "comics"),
    ("cookies", "muffins", "bagels"),
    ("marbles", "stickers", "buttons"),
)


@dataclass(frozen=True, slots=True)
class InferredTemplate:
    """The numbers of a question where they stand, and the one way in which they give the answer."""

    spans: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    formula: Formula


@lru_cache(maxsize=4096)  # each problem is changed several times
def infer_template(question: str, answer: str) -> InferredTemplate | None:
    """None where there is no such way, or more than one, or where words hide numbers."""
    gold = parse_plain_number(answer).value
    matches = list(_NUMBER.finditer(question))
    if gold is None or not MIN_NUMBERS <= len(matches) <= MAX_NUMBERS:
        return None
    if _NUMBER_WORDS.search(question) or re.search(r"[0-9]", _NUMBER.sub("", question)):
        return None
    numbers = tuple(int(match[0].replace(",", "")) for match in matches)
    ways = find_formulas(numbers, gold)
    if len(ways) != 1:
        return None
    names = [f"n{i}" for i in range(len(numbers))]
    spans = tuple((match.start(), match.end()) for match in matches)
    return InferredTemplate(spans, numbers, Formula.parse(ways[0], names))


def find_formulas(numbers: Sequence[int], target: Fraction) -> list[str]:
    """Every way to work the target out of all these numbers, each used once, as formulas over n0, n1, ...

    Two formulas are one way where they agree on other numbers too.
    """
    count = len(numbers)
    points = [list(numbers), *(list(point[:count]) for point in TEST_POINTS)]
    table: dict[int, dict[tuple[Fraction, ...], str]] = {
        1 << i: {tuple(Fraction(point[i]) for point in points): f"n{i}"} for i in range(count)
    }
    for mask in range(1, 1 << count):
        ways = table.setdefault(mask, {})
        part = (mask - 1) & mask
        while part:
            for a, left in table[part].items():
                for b, right in table[mask ^ part].items():
                    for sign, values in _combined(a, b, part < mask ^ part):
                        ways.setdefault(values, f"({left} {sign} {right})")
            part = (part - 1) & mask
    return [text for values, text in table[(1 << count) - 1].items() if values[0] == target]


Values = tuple[Fraction, ...]


def _combined(a: Values, b: Values, first: bool) -> Iterator[tuple[str, Values]]:
    """`first`: the order in which + and * are tried, once being enough."""
    pairs = list(zip(a, b, strict=True))
    yield "-", tuple(x - y for x, y in pairs)
    if 0 not in b:
        yield "/", tuple(x / y for x, y in pairs)
    if first:
        yield "+", tuple(x + y for x, y in pairs)
        yield "*", tuple(x * y for x, y in pairs)


def change_numbers(problem: Problem, rng: random.Random) -> tuple[str, str] | None:
    """The question with other numbers and the answer for them.

    Numbers stay in the order of their sizes, and each step of the way stays whole or negative where it was: a question
    that gave away three of five apples does not give away seven.
    """
    question = bare_question(problem)
    template = infer_template(question, str(problem.answer))
    if template is None:
        return None
    before = _value_signs(template, template.numbers)
    for _ in range(MAX_NUMBER_DRAWS):
        fresh = tuple(rng.randint(max(2, n // 2), 2 * n + 3) if n > 1 else n for n in template.numbers)
        if fresh == template.numbers or _size_order(fresh) != _size_order(template.numbers):
            continue
        if (shape := _value_signs(template, fresh)) is not None and shape == before:
            return _fill_numbers(question, template, fresh), str(template.formula.value(_variables(fresh)))
    return None


def _variables(numbers: Sequence[int]) -> dict[str, Fraction]:
    return {f"n{i}": Fraction(n) for i, n in enumerate(numbers)}


def _value_signs(template: InferredTemplate, numbers: Sequence[int]) -> list[tuple[bool, bool]] | None:
    try:
        return [(v.denominator == 1, v > 0) for v in template.formula.values(_variables(numbers))]
    except NoExactValue:
        return None


def _size_order(numbers: Sequence[int]) -> list[tuple[bool, bool]]:
    return [(a < b, a == b) for i, a in enumerate(numbers) for b in numbers[i + 1 :]]


def _fill_numbers(question: str, template: InferredTemplate, numbers: Sequence[int]) -> str:
    out, end = "", 0
    for (start, stop), number in zip(template.spans, numbers, strict=True):
        commas = "," in question[start:stop]
        out += question[end:start] + (f"{number:,}" if commas else str(number))
        end = stop
    return out + question[end:]


def change_names(problem: Problem, rng: random.Random) -> tuple[str, str] | None:
    """Every known name in the question becomes another of its kind, so that pronouns still fit."""
    swaps: dict[str, str] = {}
    question = bare_question(problem)
    for names in (FEMALE_NAMES, MALE_NAMES):
        present = [name for name in names if re.search(rf"\b{name}\b", question)]
        others = rng.sample([name for name in names if name not in present], len(present)) if present else []
        swaps |= dict(zip(present, others, strict=True))
    return _swap_words(problem, swaps)


def change_units(problem: Problem, rng: random.Random) -> tuple[str, str] | None:
    """Things become other things of their kind. A question with two of a kind may compare them: they are left alone."""
    question = bare_question(problem)
    swaps: dict[str, str] = {}
    for kind in INTERCHANGEABLE_WORDS:
        present = [word for word in kind if re.search(rf"\b{word[:-1]}s?\b", question, re.IGNORECASE)]
        if len(present) == 1:
            old = present[0]
            articled = re.search(rf"\ban?\s+{old[:-1]}\b", question, re.IGNORECASE)
            others = [word for word in kind if word != old and (not articled or _takes_an(word) == _takes_an(old))]
            if others:
                new = rng.choice(others)
                swaps |= {old: new, old[:-1]: new[:-1]}
                swaps |= {old.capitalize(): new.capitalize(), old[:-1].capitalize(): new[:-1].capitalize()}
    return _swap_words(problem, swaps)


def _takes_an(word: str) -> bool:
    """Said with "an" before it."""
    return word[0] in "aeio"


def _swap_words(problem: Problem, swaps: dict[str, str]) -> tuple[str, str] | None:
    if not swaps:
        return None
    words = re.compile(rf"\b(?:{'|'.join(swaps)})\b")
    question = bare_question(problem)
    changed = words.sub(lambda m: swaps[m[0]], question)
    return None if changed == question else (changed, str(problem.answer))


MUTATIONS: dict[str, Callable[[Problem, random.Random], tuple[str, str] | None]] = {
    "numbers": change_numbers, "names": change_names, "units": change_units,
}  # fmt: skip


def mutate(problem: Problem, operator: str, id: str, seed: int) -> Problem | None:
    """A changed problem with its lineage; None where this change does not fit it."""
    changed = MUTATIONS[operator](problem, random.Random(f"{seed} {operator} {problem.id}"))
    if changed is None:
        return None
    question, answer = changed
    return synthetic_problem(
        id, question, answer, source="mutation", operator=operator, parents=[problem.id], seed=seed,
        domain=domain_of(problem),
    )  # fmt: skip
