"""Small operations on lists of integers, texts and integers, in words and in Python, to make programs of."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

ValueType = Literal["list", "text", "integer"]


class Operation(NamedTuple):
    """From a value `x` of one type to one of another. `{k}` in words and code is a number, `{c}` a letter."""

    name: str
    input_type: ValueType
    output_type: ValueType
    description: str
    code: str
    numbers: tuple[int, int] | None = None  # from which k is drawn


class AppliedOperation(NamedTuple):
    """An operation with its number or letter."""

    name: str
    k: int = 0
    c: str = ""

    @property
    def operation(self) -> Operation:
        return OPERATIONS_BY_NAME[self.name]

    @property
    def words(self) -> str:
        return self.operation.description.format(k=self.k, c=self.c)

    @property
    def code(self) -> str:
        return self.operation.code.format(k=self.k, c=self.c)


OPERATIONS = (
    # lists to lists
    Operation("evens", "list", "list", "keep only the even numbers", "[n for n in x if n % 2 == 0]"),
    Operation("odds", "list", "list", "keep only the odd numbers", "[n for n in x if n % 2 == 1]"),
    Operation("above", "list", "list", "keep only numbers greater than {k}", "[n for n in x if n > {k}]", (-3, 6)),
    Operation("squares", "list", "list", "replace each number by its square", "[n * n for n in x]"),
    Operation("plus", "list", "list", "add {k} to each number", "[n + {k} for n in x]", (1, 9)),
    Operation("times", "list", "list", "multiply each number by {k}", "[n * {k} for n in x]", (2, 5)),
    Operation("absolute", "list", "list", "replace each number by its absolute value", "[abs(n) for n in x]"),
    Operation("reverse", "list", "list", "reverse the order", "x[::-1]"),
    Operation("sort", "list", "list", "sort from small to large", "sorted(x)"),
    Operation("unique", "list", "list", "keep only the first of equal numbers", "list(dict.fromkeys(x))"),
    Operation("repeated", "list", "list", "keep only numbers that occur more than once",
              "[n for n in x if x.count(n) > 1]"),
    Operation("drop", "list", "list", "remove the first {k} numbers (all, if there are fewer)", "x[{k}:]", (1, 3)),
    Operation("take", "list", "list", "keep only the first {k} numbers (all, if there are fewer)", "x[:{k}]", (2, 5)),
    Operation("every", "list", "list", "keep every second number, beginning with the first", "x[::2]"),
    Operation("running", "list", "list", "replace each number by the sum of all numbers up to and including it",
              "[sum(x[: i + 1]) for i in range(len(x))]"),
    Operation("differences", "list", "list", "replace the list by the differences of neighbours, each number minus the"
              " one before it", "[b - a for a, b in zip(x, x[1:])]"),
    Operation("mirror", "list", "list", "append the list in reverse order to itself", "x + x[::-1]"),
    Operation("indexed", "list", "list", "add to each number its index, which begins at 0",
              "[n + i for i, n in enumerate(x)]"),
    # lists to integers and texts
    Operation("sum", "list", "integer", "take the sum (0 for an empty list)", "sum(x)"),
    Operation("largest", "list", "integer", "take the largest number (0 for an empty list)", "max(x, default=0)"),
    Operation("smallest", "list", "integer", "take the smallest number (0 for an empty list)", "min(x, default=0)"),
    Operation("length", "list", "integer", "take the length of the list", "len(x)"),
    Operation("span", "list", "integer", "take the largest minus the smallest number (0 for an empty list)",
              "max(x, default=0) - min(x, default=0)"),
    Operation("rises", "list", "integer", "count how many numbers are greater than the one before them",
              "sum(b > a for a, b in zip(x, x[1:]))"),
    Operation("join", "list", "text", "write the numbers as a text, joined by '-'", "'-'.join(str(n) for n in x)"),
    # texts to texts
    Operation("backwards", "text", "text", "reverse the text", "x[::-1]"),
    Operation("upper", "text", "text", "turn it into upper case", "x.upper()"),
    Operation("swap", "text", "text", "turn lower case into upper case and upper into lower", "x.swapcase()"),
    Operation("no-vowels", "text", "text", "remove all vowels (a, e, i, o, u in either case)",
              "''.join(c for c in x if c.lower() not in 'aeiou')"),
    Operation("letters", "text", "text", "keep only the first of equal characters", "''.join(dict.fromkeys(x))"),
    Operation("sorted", "text", "text", "put its characters in order of their code points", "''.join(sorted(x))"),
    Operation("double", "text", "text", "write each character twice", "''.join(c + c for c in x)"),
    Operation("words", "text", "text", "reverse the order of its words, which are parted by single spaces",
              "' '.join(x.split(' ')[::-1])"),
    Operation("without", "text", "text", "remove every '{c}'", "x.replace('{c}', '')"),
    Operation("start", "text", "text", "keep only the first {k} characters (all, if there are fewer)", "x[:{k}]",
              (3, 8)),
    # texts to integers and lists
    Operation("characters", "text", "integer", "take the number of its characters", "len(x)"),
    Operation("vowels", "text", "integer", "count its vowels (a, e, i, o, u in either case)",
              "sum(c.lower() in 'aeiou' for c in x)"),
    Operation("count", "text", "integer", "count how often '{c}' stands in it", "x.count('{c}')"),
    Operation("word-lengths", "text", "list", "take the lengths of its words, which are parted by single spaces",
              "[len(w) for w in x.split(' ')]"),
    Operation("codes", "text", "list", "take the code point of each character", "[ord(c) for c in x]"),
    # integers
    Operation("add", "integer", "integer", "add {k}", "x + {k}", (1, 20)),
    Operation("multiply", "integer", "integer", "multiply by {k}", "x * {k}", (2, 9)),
    Operation("remainder", "integer", "integer", "take the remainder after division by {k} (from 0 to {k} - 1)",
              "x % {k}", (3, 9)),
    Operation("square", "integer", "integer", "square it", "x * x"),
    Operation("digit-sum", "integer", "integer", "take the sum of the decimal digits of its absolute value",
              "sum(int(d) for d in str(abs(x)))"),
    Operation("digits", "integer", "list", "list the decimal digits of its absolute value, in order",
              "[int(d) for d in str(abs(x))]"),
    Operation("up-to", "integer", "list", "list the integers from 1 up to it, or to 50 if it is greater (none, if it is"
              " below 1)", "list(range(1, min(x, 50) + 1))"),
    Operation("binary", "integer", "text", "write its absolute value in binary, as a text without a prefix",
              "format(abs(x), 'b')"),
    Operation("decimal", "integer", "text", "write it as a decimal text", "str(x)"),
)  # fmt: skip

OPERATIONS_BY_NAME = {operation.name: operation for operation in OPERATIONS}

_WORDS = ("apple", "Banana", "sea", "tree", "Moon", "river", "a", "Otter", "noon", "level", "stone", "I", "rain")


def random_operation(rng: random.Random, takes: ValueType) -> AppliedOperation:
    """Any operation on this type."""
    operation = rng.choice([o for o in OPERATIONS if o.input_type == takes])
    k = rng.randint(*operation.numbers) if operation.numbers else 0
    return AppliedOperation(operation.name, k, rng.choice("aeinorst") if "{c}" in operation.code else "")


def random_value(rng: random.Random, kind: ValueType) -> list[int] | str | int:
    """A value to try a program on."""
    if kind == "list":
        return [rng.randint(-9, 12) for _ in range(rng.randint(4, 9))]
    if kind == "text":
        return " ".join(rng.choice(_WORDS) for _ in range(rng.randint(2, 5)))
    return rng.randint(-50, 500)


CORNER_CASES: dict[ValueType, tuple[list[int] | str | int, ...]] = {
    "list": ([], [0], [-7], [3, 3, 3], [2, 1], [5, -5, 5, -5, 4]),
    "text": ("", "a", "Zz", "eee", "no no", "Aa bB"),
    "integer": (0, 1, -1, 7, 10, 99, -123),
}
