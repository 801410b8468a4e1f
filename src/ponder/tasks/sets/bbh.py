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
from ponder.tasks.sets.files import Files, Make, Row, read
from ponder.tasks.sets.loaded import Loaded
from ponder.types import Problem, Score
from ponder.verify import Choice, FinalList, FinalNumber, FinalText, Form
from ponder.verify.scoring import TextScorer, bad_data, shown
from ponder.verify.style import Wanted

TASKS = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa", "dyck_languages",
    "formal_fallacies", "geometric_shapes", "hyperbaton", "logical_deduction_five_objects",
    "logical_deduction_seven_objects", "logical_deduction_three_objects", "movie_recommendation",
    "multistep_arithmetic_two", "navigate", "object_counting", "penguins_in_a_table",
    "reasoning_about_colored_objects", "ruin_names", "salient_translation_error_detection", "snarks",
    "sports_understanding", "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects", "web_of_lies", "word_sorting",
)  # fmt: skip

FORMS: tuple[Form, ...] = ("tag", "boxed", "line")  # the line: "So the answer is (B).", as the worked examples end


@dataclass(frozen=True)
class BigBenchAnswer(TextScorer):
    """Each problem by its kind: `{"kind": "choice", "right": "(B)"}`, or a number, a word, a list, brackets."""

    forms: tuple[Form, ...] = FORMS

    @property
    def name(self) -> str:
        return "accuracy"

    def verdict(self, text: str, gold: Any) -> Score:
        kinds = _kinds(self.forms)
        if not isinstance(gold, Mapping) or gold.get("kind") not in kinds:
            bad_data(f"{shown(gold)} does not say which kind of answer is right")
        return kinds[gold["kind"]].judge(text, gold["right"])


@lru_cache(maxsize=8)
def _kinds(forms: tuple[Form, ...]) -> dict[str, Choice | FinalNumber | FinalText | FinalList]:
    return {
        "choice": Choice(forms),
        "number": FinalNumber(forms),
        "word": FinalText(forms, ignore_case=True),
        "brackets": FinalText(forms, ignore_spaces=True),
        "list": FinalList(forms),
    }


@dataclass(frozen=True, kw_only=True)
class BBH(Loaded):
    """One of BIG-Bench Hard's tasks or, as `part="all"`, every one.

    `cot` puts the set's three worked examples before each.
    """

    NO_TRAIN = (
        "its authors ask that BIG-Bench never be trained on; train on another task (logic: knights, zebra, sat) and"
        " measure on bbh"
    )

    PART: ClassVar[str] = "part"  # bbh:NAME

    WANTED = Wanted("the answer", FORMS, "; where there are options, the letter of the right one")
    STYLE = "cot"

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
        return BigBenchAnswer(FORMS if self.cot else self.reads)

    def rows(self, files: Files) -> tuple[list[Row], list[Row]]:
        test: list[Row] = []
        for part in TASKS if self.part == "all" else (self.part,):
            worked = _worked(files, part) if self.cot else ""
            test += files.records(f"bbh/{part}.json", _example(part, worked), under="examples")
        return [], test

    def put(self, row: Row) -> str:
        return f"{row.tags['worked']}\n\nQ: {row.question}\nA:" if self.cot else super().put(row)

    def ask(self, question: str) -> str:
        return f"{question} Let's think step by step." if self.cot else super().ask(question)

    def styled(self, style: str) -> Self:
        """The worked examples are a chain of thought already."""
        return self if self.cot and style == "cot" else super().styled(style)

    def gold(self, problem: Problem) -> str:
        right = problem.answer["right"]
        said = " ".join(right) if isinstance(right, list) else right
        return f"So the answer is {said}." if self.cot else self.stated(said)


def _worked(files: Files, part: str) -> str:
    """The examples, below the line that parts them from the notice that they must not be trained on."""
    return read(files.folder / "cot-prompts" / f"{part}.txt").partition("\n-----\n")[2].strip()


def _example(part: str, worked: str) -> Make:
    def make(record: dict[str, Any], number: int) -> Row:
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
        return Row(f"{part}-{number - 1}", record["input"].strip(), answer, tags=tags)

    return make
