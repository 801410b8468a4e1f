"""Questions with their answers from any file of yours: AIME, an exam, a list of your own.

A row has a question and an answer, in columns of whatever name: .jsonl, .json (a list), .csv or .parquet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.protocols import Scorer
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.datasets.dataset_files import BadRows, DatasetFiles, DatasetRow
from ponder.tasks.question_identity import same_question_key
from ponder.types import Problem
from ponder.verify import AnswerForm, FinalNumber, FinalText, MathAnswer, MultipleChoice

AnswerType = Literal["math", "number", "choice", "text"]
QUESTION_COLUMNS = ("problem", "question", "Problem", "Question", "prompt", "input")
ANSWER_COLUMNS = ("answer", "Answer", "final_answer", "solution", "target", "gold")
ID_COLUMNS = ("id", "ID", "problem_id", "unique_id", "url")


@dataclass(frozen=True, kw_only=True)
class QuestionFile(StyledTask):
    """A file of questions and answers to measure with; `train_data` names another to train on."""

    DEFAULT_STYLE = "cot"
    REQUIRED_SETTINGS: ClassVar[dict[str, str]] = {
        "data": "a .jsonl, .json, .csv or .parquet file of questions and answers"
    }

    data: str
    question: str = ""  # its column; empty: the first of the usual names
    answer: str = ""
    answer_type: AnswerType = "math"
    train_data: str | None = None
    limit: int | None = None
    prompt: str = "{question}"
    system: str | None = None
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written
    bad_rows: BadRows = "refuse"

    def __post_init__(self) -> None:
        if self.answer_type not in get_args(AnswerType):
            raise UnknownName("answer_type", self.answer_type, get_args(AnswerType))
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit is {self.limit}; give at least 1, or leave it out to take all rows")
        try:
            self.prompt.format(question="")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise UsageError(f"the prompt cannot be filled in ({error!r}); its one field is {{question}}") from error
        self.verifier  # noqa: B018  builds it, which checks its settings

    @property
    def name(self) -> str:
        return "questions"

    @property
    def verifier(self) -> Scorer:
        judges: dict[str, Any] = {
            "math": MathAnswer,
            "number": FinalNumber,
            "choice": MultipleChoice,
            "text": FinalText,
        }
        scorer: Scorer = judges[self.answer_type](self.answer_forms)
        return scorer

    @property
    def test(self) -> Sequence[Problem]:
        return self._test_problems

    @cached_property
    def _test_problems(self) -> Sequence[Problem]:
        return self._problems("test", self._rows(self.data))

    @property
    def train(self) -> Sequence[Problem]:
        return self._train_problems

    @cached_property
    def _train_problems(self) -> Sequence[Problem]:
        if self.train_data is None:
            raise TaskError(f"{self.data} is to measure with: name other questions to train on with train_data=FILE")
        held_out_keys = {same_question_key(row.question) for row in self._rows(self.data)}
        rows = [row for row in self._rows(self.train_data) if same_question_key(row.question) not in held_out_keys]
        if not rows:
            raise TaskError(f"{self.train_data} has no question that {self.data} has not, too")
        return self._problems("train", rows)

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(str(problem.answer))

    def _problems(self, split: str, rows: list[DatasetRow]) -> list[Problem]:
        return [
            self.make_problem(
                f"{self.name}/{split}/{row.id}", self.prompt.format(question=row.question), row.answer, row.tags
            )
            for row in rows[: self.limit]
        ]

    def _rows(self, data: str) -> list[DatasetRow]:
        path = Path(data)
        files = DatasetFiles(path.parent)
        rows = files.read_file(path.name, self._row)
        files.report_bad_rows(self.name, self.bad_rows)
        return rows

    def _row(self, record: dict[str, Any], number: int) -> DatasetRow:
        question, answer = (
            _find_column(record, self.question, QUESTION_COLUMNS),
            _find_column(record, self.answer, ANSWER_COLUMNS),
        )
        for column in (question, answer):
            if record[column] is None or not str(record[column]).strip():
                raise ValueError(f"no {question} or no {answer}")
        if not isinstance(record[question], str | int):
            raise ValueError(f"the {question} is {record[question]!r:.40}, no text")
        own = next((str(record[c]) for c in ID_COLUMNS if record.get(c) not in (None, "")), str(number))
        tags = {
            k: v for k, v in record.items() if k not in (question, answer) and isinstance(v, str | int | float | bool)
        }
        return DatasetRow(own, str(record[question]).strip(), _plain_number(record[answer]), tags=tags)


def _find_column(record: dict[str, Any], name: str, usual: Sequence[str]) -> str:
    column = name or next((c for c in usual if c in record), "")
    if column not in record:
        raise ValueError(f"no column {column or ' or '.join(usual[:2])!r} among {', '.join(map(str, record))}")
    return column


def _plain_number(answer: Any) -> str:
    """A whole number that a table kept as a float is itself."""
    if not isinstance(answer, float):
        return str(answer).strip()
    if not math.isfinite(answer):  # how tables write an empty cell, or a number that was too large for them
        raise ValueError(f"the answer is {answer}, which is no number")
    return str(int(answer)) if answer.is_integer() else str(answer)
