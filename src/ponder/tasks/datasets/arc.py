"""AI2's reasoning challenge (Clark et al. 2018): grade-school science with four or so options.

$PONDER_DATA/arc/ARC-Challenge/ARC-Challenge-Train.jsonl, ARC-Challenge-Test.jsonl          1,119 and 1,172
$PONDER_DATA/arc/ARC-Easy/ARC-Easy-Train.jsonl, ARC-Easy-Test.jsonl                         2,251 and 2,376
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ponder.errors import UnknownName
from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.types import Problem
from ponder.verify import AnswerForm, MultipleChoice
from ponder.verify.answers.style import AnswerSpec

Part = Literal["Challenge", "Easy"]


@dataclass(frozen=True, kw_only=True)
class ARC(DatasetTask):
    """Official split. `part="Challenge"` holds what retrieval and co-occurrence got wrong."""

    ANSWER_SPEC = AnswerSpec("the letter of the right option")
    DEFAULT_STYLE = "cot"

    part: Part = "Challenge"
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise UnknownName("part of arc", self.part, get_args(Part))
        super().__post_init__()

    @property
    def name(self) -> str:
        return "arc"

    @property
    def verifier(self) -> MultipleChoice:
        return MultipleChoice(self.answer_forms)

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        base = f"ARC-{self.part}/ARC-{self.part}"
        return files.read_jsonl(f"{base}-Train.jsonl", _question), files.read_jsonl(f"{base}-Test.jsonl", _question)

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(problem.answer["choice"])


def _question(record: dict[str, Any], number: int) -> DatasetRow:
    choices = record["question"]["choices"]
    letters = {choice["label"]: chr(ord("A") + i) for i, choice in enumerate(choices)}  # some are labelled 1 to 4
    options = {letters[choice["label"]]: choice["text"].strip() for choice in choices}
    if len(options) < max(2, len(choices)):
        raise ValueError("there are fewer than two options, or two with one label")
    listed = "\n".join(f"({letter}) {text}" for letter, text in options.items())
    answer = {"choice": letters[record["answerKey"]], "options": options}
    return DatasetRow(str(record["id"]), f"{record['question']['stem'].strip()}\n{listed}", answer)
