"""ProcessBench (Zheng et al. 2024): find the first wrong step of a solution, or say that there is none.

$PONDER_DATA/processbench/gsm8k.json, math.json          400 and 1,000 solutions, cut into steps and labelled by people
                          olympiadbench.json, omnimath.json          where they are there: 1,000 each
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ponder.errors import UnknownName, UsageError
from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.tasks.step_labels.processbench_labels import PARTS, parse_solution
from ponder.types import Problem
from ponder.verify import AnswerForm, FinalNumber
from ponder.verify.answers.style import AnswerSpec


@dataclass(frozen=True, kw_only=True)
class ProcessBench(DatasetTask):
    """The index of the first wrong step, from 0; -1 where all are right. `verifier_metrics` has the paper's F1."""

    NO_TRAIN_REASON = "ProcessBench is a test set; train step scorers on other labelled steps"

    ANSWER_SPEC = AnswerSpec("its number", notation=", or -1 where all steps are right", separator=" ")
    DEFAULT_STYLE = "cot"

    parts: tuple[str, ...] = ("gsm8k", "math")
    prompt: str = (
        "Here is a problem and a solution, cut into numbered steps.\n\n{question}\n\nFind the first step that is wrong."
    )
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    def __post_init__(self) -> None:
        if not self.parts or isinstance(self.parts, str):
            raise UsageError(f"parts is {self.parts!r}; name some of {', '.join(PARTS)}")
        for part in self.parts:
            if part not in PARTS:
                raise UnknownName("part of processbench", part, PARTS)
        super().__post_init__()

    @property
    def name(self) -> str:
        return "processbench"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.answer_forms)

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        return [], [row for part in self.parts for row in files.read_json(f"{part}.json", _solution)]

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(str(problem.answer))


def _solution(record: dict[str, Any], number: int) -> DatasetRow:
    problem, texts, label = parse_solution(record)
    steps = [text.strip() for text in texts]
    shown = "\n\n".join(f"Step {i}: {step}" for i, step in enumerate(steps))
    tags = {
        "steps": steps, "problem": problem, "generator": record.get("generator", ""),
        "final_answer_correct": bool(record["final_answer_correct"]),
    }  # fmt: skip
    return DatasetRow(str(record["id"]), f"Problem: {problem.strip()}\n\n{shown}", str(label), tags=tags)
