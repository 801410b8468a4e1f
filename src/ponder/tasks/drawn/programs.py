"""Write a Python function from its specification; hidden tests decide.

A program is a chain of small operations. The reference is written from the same chain, and the tests are what it
returns. A chain is drawn again until each of its steps can be seen: leaving one out must fail a test.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ponder.tasks.asked import Asked
from ponder.tasks.drawn.operations import CORNERS, Applied, Type, choose, example
from ponder.tasks.drawn.procedural import at_least, at_most
from ponder.tasks.split import digest
from ponder.types import Problem
from ponder.verify.code.verdicts import CallTests
from ponder.verify.style import Wanted

ENTRY = "solve"
TYPES: dict[Type, str] = {"list": "a list of integers", "text": "a text", "integer": "an integer"}
SIGNS: dict[Type, str] = {"list": "list[int]", "text": "str", "integer": "int"}


class Item(NamedTuple):
    takes: Type
    steps: tuple[Applied, ...]


class Case(NamedTuple):
    given: Any
    returned: Any


@dataclass(frozen=True, kw_only=True)
class Programs(Asked[Item]):
    """Functions of so many `steps`, with `examples` shown in the specification and `tests` hidden."""

    WANTED = Wanted("the function", place="in a ```python block", bare=False)
    LEVELS = tuple({"steps": steps} for steps in (1, 2, 3, 4, 6, 8))

    steps: int = 2
    examples: int = 2
    tests: int = 12
    test_size: int = 100  # each is drawn some thirty times over
    share: bool = False  # the share of tests passed, in place of all or nothing

    def check(self) -> None:
        at_least(1, steps=self.steps)
        at_most(12, steps=self.steps)
        at_least(0, examples=self.examples)
        at_most(100, examples=self.examples)
        at_least(4, tests=self.tests)
        at_most(100, tests=self.tests)

    @property
    def name(self) -> str:
        return "programs"

    @property
    def verifier(self) -> CallTests:
        return CallTests(share=self.share)

    def draw(self, rng: random.Random) -> Item:
        while True:
            takes = kind = rng.choice(list(TYPES))
            steps: list[Applied] = []
            for _ in range(self.steps):
                steps.append(choose(rng, kind))
                kind = steps[-1].operation.gives
            item = Item(takes, tuple(steps))
            if _telling(item, self.tests):
                return item

    def key(self, item: Item) -> str:
        return f"{item.takes} {[tuple(step) for step in item.steps]}"

    def question(self, item: Item) -> str:
        gives = item.steps[-1].operation.gives
        lines = [f"{i}. {step.words[0].upper()}{step.words[1:]}." for i, step in enumerate(item.steps, 1)]
        shown = [f"{ENTRY}({case.given!r}) == {case.returned!r}" for case in self._cases(item)[: self.examples]]
        told = f"Write a Python function `{ENTRY}(x)` that takes {TYPES[item.takes]} and returns {TYPES[gives]}, so:"
        return "\n".join([told, *lines, *(["For example:", *shown] if shown else [])])

    def answer(self, item: Item) -> Mapping[str, Any]:
        hidden = self._cases(item)[self.examples :]
        return {"entry": ENTRY, "tests": [{"args": [case.given], "expected": case.returned} for case in hidden]}

    def tags(self, item: Item) -> dict[str, Any]:
        return {"steps": self.steps, "reference": source(item)}

    def gold(self, problem: Problem) -> str:
        return self.stated(f"```python\n{problem.tags['reference']}```")

    def _cases(self, item: Item) -> Sequence[Case]:
        return cases(item, self.examples, self.tests)


def source(item: Item) -> str:
    """The reference, as a person would write it."""
    lines = [f"    x = {step.code}\n" for step in item.steps[:-1]]
    head = f"def {ENTRY}(x: {SIGNS[item.takes]}) -> {SIGNS[item.steps[-1].operation.gives]}:\n"
    return head + "".join(lines) + f"    return {item.steps[-1].code}\n"


@lru_cache(maxsize=256)  # once for the question, once for the tests
def cases(item: Item, examples: int, tests: int) -> tuple[Case, ...]:
    """Inputs and what the reference returns: first the examples, then corner cases and others."""
    rng = random.Random(digest(str(item)))
    corners = list(CORNERS[item.takes])
    drawn = [example(rng, item.takes) for _ in range(examples + max(0, tests - len(corners)))]
    given = [*drawn[:examples], *corners[:tests], *drawn[examples:]]
    return tuple(Case(value, run(item, value)) for value in given)


def run(item: Item, value: Any) -> Any:
    """The reference on one input. Its code comes from the table of operations, never from a model."""
    for step in item.steps:
        value = eval(_compiled(step.code), {"x": value})
    return value


@lru_cache(maxsize=4096)
def _compiled(code: str) -> Any:
    return compile(code, "operation", "eval")


def _telling(item: Item, tests: int) -> bool:
    """Whether outputs differ, stay small, and change when any one step is left out."""
    found = cases(item, 0, tests)
    outputs = [case.returned for case in found]
    if any(len(repr(output)) > 400 for output in outputs) or len({repr(output) for output in outputs}) < 3:
        return False
    for i, step in enumerate(item.steps):
        shorter = Item(item.takes, item.steps[:i] + item.steps[i + 1 :])
        fits = step.operation.takes == step.operation.gives
        if fits and all(run(shorter, case.given) == case.returned for case in found):
            return False
    return True
