"""Competition mathematics: MATH-500.

$PONDER_DATA/math500/test.jsonl        500 problems held out of MATH by Lightman et al. 2023
$PONDER_DATA/math500/train.jsonl       where there is one: the other 12,000 problems, in the same format
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.types import Problem
from ponder.verify import AnswerForm
from ponder.verify.maths import MathAnswer


@dataclass(frozen=True, kw_only=True)
class MATH500(DatasetTask):
    """Problems from mathematics competitions (Hendrycks et al. 2021), with levels 1 to 5 in their tags."""

    NO_TRAIN_REASON = (
        "MATH-500 is a test set; put MATH's other 12,000 problems beside it as math500/train.jsonl, or train on gsm8k"
    )

    DEFAULT_STYLE = "cot"

    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    @property
    def name(self) -> str:
        return "math500"

    @property
    def verifier(self) -> MathAnswer:
        return MathAnswer(self.answer_forms)

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        train = files.read_jsonl("train.jsonl", _parse_math_problem) if (files.folder / "train.jsonl").exists() else []
        return train, files.read_jsonl("test.jsonl", _parse_math_problem)

    def gold(self, problem: Problem) -> str:
        """The set's own solution, where the strict verifier finds one plain answer in it, else the answer alone."""
        worked = str(problem.tags["solution"])
        taken = self.answer_forms[0] == "boxed" and self.verifier.grade(worked, problem.answer).value == 1.0
        return worked if taken else self.gold_completion(problem.answer)


def _parse_math_problem(record: dict[str, Any], number: int) -> DatasetRow:
    answer = record["answer"].strip()
    if not answer:
        raise ValueError("no gold answer")
    tags = {"level": record["level"], "subject": record["subject"], "solution": record["solution"]}
    return DatasetRow(record["unique_id"].removesuffix(".json"), record["problem"].strip(), answer, tags=tags)
