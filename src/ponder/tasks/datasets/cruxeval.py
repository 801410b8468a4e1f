"""CRUXEval (Gu et al. 2024): what does a function return, or which input makes it return this?

$PONDER_DATA/cruxeval/cruxeval.jsonl           800 problems, for testing only
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ponder.errors import UnknownName
from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.types import Problem, Score
from ponder.verify.answers.structured import extract_structured
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason
from ponder.verify.code.call_tests import CallTests
from ponder.verify.code.compare_values import values_equal
from ponder.verify.sandbox.codec import NotPlainData, encode

Direction = Literal["output", "input"]
MAX_ANSWER_CHARS = 2_000  # characters of an answer

_QUESTIONS: dict[Direction, str] = {
    "output": "What does f({input}) return?",
    "input": "With which arguments does f return {output}? Any that do are right.",
}
_ANSWER_SPECS: dict[Direction, AnswerSpec] = {
    "output": AnswerSpec("the value as a Python literal", ("tag", "boxed"), allow_bare=False),
    "input": AnswerSpec(
        "the arguments",
        ("tag", "boxed"),
        " as they stand between the brackets of the call, as literals",
        allow_bare=False,
    ),
}


@dataclass(frozen=True)
class PredictedOutput(TextVerifier):
    """1 where the literal equals what the function returns. The model's text is read, never run."""

    @property
    def name(self) -> str:
        return "accuracy"

    def verify(self, text: str, gold: Any) -> Score:
        row = _checked_gold(gold)
        extracted = extract_structured(text, max_chars=MAX_ANSWER_CHARS)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        values = _literals(extracted.answer)
        if values is None:
            return Score(0.0, "malformed: not a Python literal")
        right = len(values) == 1 and values_equal(encode(values[0]), _gold_literals(row["output"])[0])
        return Score(1.0, "right") if right else Score(0.0, "wrong")


@dataclass(frozen=True)
class PredictedInput(CallTests):
    """1 where the function, called in the jail with the literals given, returns the output.

    Only literals: an expression could change what the function does. The set's own input is right as it is; twelve of
    them hold a `dict(...)`, a lambda or the like.
    """

    def verify(self, text: str, gold: Any) -> Score:
        row = _checked_gold(gold)
        extracted = extract_structured(text, max_chars=MAX_ANSWER_CHARS)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        if _within_call(extracted.answer) == row["input"].strip():
            return Score(1.0, "right")
        arguments = _literals(_within_call(extracted.answer))
        if arguments is None:
            return Score(0.0, "malformed: not Python literals")
        test = {"args": arguments, "expected": _gold_literals(row["output"])[0]}
        return self.grade_program(row["code"], {"entry": "f", "tests": [test]})


@dataclass(frozen=True, kw_only=True)
class CRUXEval(DatasetTask):
    """`direction`: predict the output from the input, or an input from the output."""

    NO_TRAIN_REASON = "CRUXEval is a test set; train on programs, which needs no data, and measure on cruxeval"

    DEFAULT_STYLE = "answer"

    direction: Direction = "output"

    def __post_init__(self) -> None:
        if self.direction not in get_args(Direction):
            raise UnknownName("direction", self.direction, get_args(Direction))
        super().__post_init__()

    @property
    def name(self) -> str:
        return "cruxeval"

    @property
    def verifier(self) -> PredictedOutput | PredictedInput:
        return PredictedOutput() if self.direction == "output" else PredictedInput()

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        return [], files.read_jsonl("cruxeval.jsonl", _problem)

    @property
    def answer_spec(self) -> AnswerSpec:
        return _ANSWER_SPECS[self.direction]

    def question_text(self, row: DatasetRow) -> str:
        text = _QUESTIONS[self.direction].format(**row.answer)
        return self.prompt.format(question=f"```python\n{row.question}\n```\n{text}")

    def gold(self, problem: Problem) -> str:
        text = f"f({problem.answer['input']})" if self.direction == "input" else problem.answer["output"]
        return self.gold_completion(text)


def _problem(record: dict[str, Any], number: int) -> DatasetRow:
    answer = {key: record[key] for key in ("code", "input", "output")}
    if len(_literals(answer["output"]) or ()) != 1:
        raise ValueError("the output is not a Python literal")
    return DatasetRow(record["id"].removeprefix("sample_"), record["code"].strip(), answer)


def _literals(text: str) -> list[Any] | None:
    """The values in a list of Python literals; None for anything else."""
    try:
        values = list(ast.literal_eval(f"[{text}\n]"))
        encode(values)  # only plain data crosses into the jail
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, NotPlainData):
        return None
    return values


def _within_call(text: str) -> str:
    """`f(1, 2)` says the same as `1, 2`."""
    return text[2:-1] if text.startswith("f(") and text.endswith(")") else text


def _gold_literals(text: str) -> list[Any]:
    values = _literals(text)
    if not values:
        bad_data(f"the output {repr_for_reason(text)} is not a Python literal")
    return values


def _checked_gold(gold: Any) -> Mapping[str, Any]:
    if not isinstance(gold, Mapping) or not {"code", "input", "output"} <= gold.keys():
        bad_data(f"{repr_for_reason(gold)} does not hold 'code', 'input' and 'output'")
    return gold
