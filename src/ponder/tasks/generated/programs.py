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

from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.program_operations import (
    CORNER_CASES,
    AppliedOperation,
    ValueType,
    random_operation,
    random_value,
)
from ponder.tasks.generated.question_task import QuestionTask
from ponder.tasks.split import stable_hash
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.code.call_tests import CallTests

ENTRY = "solve"
TYPE_PHRASES: dict[ValueType, str] = {"list": "a list of integers", "text": "a text", "integer": "an integer"}
TYPE_ANNOTATIONS: dict[ValueType, str] = {"list": "list[int]", "text": "str", "integer": "int"}


class ProgramItem(NamedTuple):
    takes: ValueType
    steps: tuple[AppliedOperation, ...]


class ReferenceCase(NamedTuple):
    argument: Any
    expected: Any


@dataclass(frozen=True, kw_only=True)
class Programs(QuestionTask[ProgramItem]):
    """Functions of so many `steps`, with `examples` shown in the specification and `tests` hidden."""

    ANSWER_SPEC = AnswerSpec("the function", place="in a ```python block", allow_bare=False)
    LEVELS = tuple({"steps": steps} for steps in (1, 2, 3, 4, 6, 8))

    steps: int = 2
    examples: int = 2
    tests: int = 12
    test_size: int = 100  # each is drawn some thirty times over
    partial_credit: bool = False  # the share of tests passed, in place of all or nothing

    def check(self) -> None:
        require_at_least(1, steps=self.steps)
        require_at_most(12, steps=self.steps)
        require_at_least(0, examples=self.examples)
        require_at_most(100, examples=self.examples)
        require_at_least(4, tests=self.tests)
        require_at_most(100, tests=self.tests)

    @property
    def name(self) -> str:
        return "programs"

    @property
    def verifier(self) -> CallTests:
        return CallTests(partial_credit=self.partial_credit)

    def draw(self, rng: random.Random) -> ProgramItem:
        while True:
            takes = kind = rng.choice(list(TYPE_PHRASES))
            steps: list[AppliedOperation] = []
            for _ in range(self.steps):
                steps.append(random_operation(rng, kind))
                kind = steps[-1].operation.output_type
            item = ProgramItem(takes, tuple(steps))
            if _steps_matter(item, self.tests):
                return item

    def key(self, item: ProgramItem) -> str:
        return f"{item.takes} {[tuple(step) for step in item.steps]}"

    def question(self, item: ProgramItem) -> str:
        gives = item.steps[-1].operation.output_type
        lines = [f"{i}. {step.words[0].upper()}{step.words[1:]}." for i, step in enumerate(item.steps, 1)]
        shown = [f"{ENTRY}({case.argument!r}) == {case.expected!r}" for case in self._cases(item)[: self.examples]]
        types = f"takes {TYPE_PHRASES[item.takes]} and returns {TYPE_PHRASES[gives]}"
        instruction = f"Write a Python function `{ENTRY}(x)` that {types}, so:"
        return "\n".join([instruction, *lines, *(["For example:", *shown] if shown else [])])

    def answer(self, item: ProgramItem) -> Mapping[str, Any]:
        hidden = self._cases(item)[self.examples :]
        return {"entry": ENTRY, "tests": [{"args": [case.argument], "expected": case.expected} for case in hidden]}

    def tags(self, item: ProgramItem) -> dict[str, Any]:
        return {"steps": self.steps, "reference": reference_source(item)}

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(f"```python\n{problem.tags['reference']}```")

    def _cases(self, item: ProgramItem) -> Sequence[ReferenceCase]:
        return reference_cases(item, self.examples, self.tests)


def reference_source(item: ProgramItem) -> str:
    """The reference, as a person would write it."""
    lines = [f"    x = {step.code}\n" for step in item.steps[:-1]]
    head = (
        f"def {ENTRY}(x: {TYPE_ANNOTATIONS[item.takes]}) -> {TYPE_ANNOTATIONS[item.steps[-1].operation.output_type]}:\n"
    )
    return head + "".join(lines) + f"    return {item.steps[-1].code}\n"


@lru_cache(maxsize=256)  # once for the question, once for the tests
def reference_cases(item: ProgramItem, examples: int, tests: int) -> tuple[ReferenceCase, ...]:
    """Inputs and what the reference returns: first the examples, then corner cases and others."""
    rng = random.Random(stable_hash(str(item)))
    corners = list(CORNER_CASES[item.takes])
    random_inputs = [random_value(rng, item.takes) for _ in range(examples + max(0, tests - len(corners)))]
    inputs = [*random_inputs[:examples], *corners[:tests], *random_inputs[examples:]]
    return tuple(ReferenceCase(value, run_reference(item, value)) for value in inputs)


def run_reference(item: ProgramItem, value: Any) -> Any:
    """The reference on one input. Its code comes from the table of operations, never from a model."""
    for step in item.steps:
        value = eval(_compiled(step.code), {"x": value})
    return value


@lru_cache(maxsize=4096)
def _compiled(code: str) -> Any:
    return compile(code, "operation", "eval")


def _steps_matter(item: ProgramItem, tests: int) -> bool:
    """Whether outputs differ, stay small, and change when any one step is left out."""
    cases = reference_cases(item, 0, tests)
    outputs = [case.expected for case in cases]
    if any(len(repr(output)) > 400 for output in outputs) or len({repr(output) for output in outputs}) < 3:
        return False
    for i, step in enumerate(item.steps):
        shorter = ProgramItem(item.takes, item.steps[:i] + item.steps[i + 1 :])
        fits = step.operation.input_type == step.operation.output_type
        if fits and all(run_reference(shorter, case.argument) == case.expected for case in cases):
            return False
    return True
