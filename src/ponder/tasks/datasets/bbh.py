"""BIG-Bench Hard (Suzgun et al. 2022): 27 tasks, 6,511 problems.

$PONDER_DATA/bbh/bbh/TASK.json                 {"examples": [{"input": ..., "target": ...}, ...]}
$PONDER_DATA/bbh/cot-prompts/TASK.txt          worked examples, for `cot`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

from ponder.errors import UnknownName, UsageError
from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow, RowParser, read_text_file
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.types import Problem, Score
from ponder.verify import AnswerForm, FinalList, FinalNumber, FinalText, MultipleChoice
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason

TASKS = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa", "dyck_languages",
    "formal_fallacies", "geometric_shapes", "hyperbaton", "logical_deduction_five_objects",
    "logical_deduction_seven_objects", "logical_deduction_three_objects", "movie_recommendation",
    "multistep_arithmetic_two", "navigate", "object_counting", "penguins_in_a_table",
    "reasoning_about_colored_objects", "ruin_names", "salient_translation_error_detection", "snarks",
    "sports_understanding", "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects", "web_of_lies", "word_sorting",
)  # fmt: skip

FORMS: tuple[AnswerForm, ...] = (
    "tag",
    "boxed",
    "line",
)  # the line: "So the answer is (B).", as the worked examples end


@dataclass(frozen=True)
class BigBenchAnswer(TextVerifier):
    """Each problem by its kind: `{"kind": "choice", "right": "(B)"}`, or a number, a word, a list, brackets."""

    forms: tuple[AnswerForm, ...] = FORMS

    @property
    def name(self) -> str:
        return "accuracy"

    def verify(self, text: str, gold: Any) -> Score:
        kinds = _verifiers_by_kind(self.forms)
        if not isinstance(gold, Mapping) or gold.get("kind") not in kinds:
            bad_data(f"{repr_for_reason(gold)} does not say which kind of answer is right")
        return kinds[gold["kind"]].grade(text, gold["right"])


@lru_cache(maxsize=8)
def _verifiers_by_kind(
    forms: tuple[AnswerForm, ...],
) -> dict[str, MultipleChoice | FinalNumber | FinalText | FinalList]:
    return {
        "choice": MultipleChoice(forms),
        "number": FinalNumber(forms),
        "word": FinalText(forms, ignore_case=True),
        "brackets": FinalText(forms, ignore_spaces=True),
        "list": FinalList(forms),
    }


@dataclass(frozen=True, kw_only=True)
class BBH(DatasetTask):
    """One of BIG-Bench Hard's tasks or, as `part="all"`, every one.

    `cot` puts the set's three worked examples before each.
    """

    NO_TRAIN_REASON = (
        "its authors ask that BIG-Bench never be trained on; train on another task (logic: knights, zebra, sat) and"
        " measure on bbh"
    )

    PART_SETTING: ClassVar[str] = "part"  # bbh:NAME

    ANSWER_SPEC = AnswerSpec("the answer", FORMS, "; where there are options, the letter of the right one")
    DEFAULT_STYLE = "cot"

    part: str = "all"
    cot: bool = False

    def __post_init__(self) -> None:
        if self.cot and self.style is not None:
            raise UsageError(
                f"bbh's worked examples (cot=true) show how to answer, so style {self.style} cannot: leave one out"
            )
        if self.part != "all" and self.part not in TASKS:
            raise UnknownName("part of bbh", self.part, ("all", *TASKS))
        super().__post_init__()

    @property
    def name(self) -> str:
        return "bbh"

    @property
    def verifier(self) -> BigBenchAnswer:
        return BigBenchAnswer(FORMS if self.cot else self.answer_forms)

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        test: list[DatasetRow] = []
        for part in TASKS if self.part == "all" else (self.part,):
            worked = _worked_examples(files, part) if self.cot else ""
            test += files.read_json(f"bbh/{part}.json", _example_parser(part, worked), under="examples")
        return [], test

    def question_text(self, row: DatasetRow) -> str:
        return f"{row.tags['worked']}\n\nQ: {row.question}\nA:" if self.cot else super().question_text(row)

    def with_instruction(self, question: str) -> str:
        return f"{question} Let's think step by step." if self.cot else super().with_instruction(question)

    def restyle(self, style: str) -> Self:
        """The worked examples are a chain of thought already."""
        return self if self.cot and style == "cot" else super().restyle(style)

    def gold(self, problem: Problem) -> str:
        right = problem.answer["right"]
        text = " ".join(right) if isinstance(right, list) else right
        return f"So the answer is {text}." if self.cot else self.gold_completion(text)


def _worked_examples(files: DatasetFiles, part: str) -> str:
    """The examples, below the line that parts them from the notice that they must not be trained on."""
    return read_text_file(files.folder / "cot-prompts" / f"{part}.txt").partition("\n-----\n")[2].strip()


def _example_parser(part: str, worked: str) -> RowParser:
    def make(record: dict[str, Any], number: int) -> DatasetRow:
        target = record["target"].strip()
        if not target:
            raise ValueError("no gold answer")
        kind = {"dyck_languages": "brackets", "word_sorting": "list"}.get(part, "word")
        if part in ("multistep_arithmetic_two", "object_counting"):
            kind = "number"
        elif re.fullmatch(r"\([A-Z]\)", target):
            kind = "choice"
        answer = {"kind": kind, "right": target.split() if kind == "list" else target}
        tags = {"part": part, **({"worked": worked} if worked else {})}
        return DatasetRow(f"{part}-{number - 1}", record["input"].strip(), answer, tags=tags)

    return make
