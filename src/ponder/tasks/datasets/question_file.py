"""Questions with their answers from any file of yours: AIME, an exam, a list of your own.

A row has a question and an answer, in columns of whatever name: .jsonl, .json (a list), .csv or .parquet. With `image`
it has pictures too, each as the path of a file, bytes, base64 or a data URL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.pictures.message_parts import place_pictures
from ponder.protocols import Scorer
from ponder.strict_parsing import parse_json
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.datasets.box_frames import BoxFormat, BoxFrame, check_box_settings, pixel_box
from ponder.tasks.datasets.dataset_files import BadRows, DatasetFiles, DatasetRow, require_columns
from ponder.tasks.datasets.picture_columns import PictureSource, picture_sources
from ponder.tasks.lazy_problems import MappedProblems
from ponder.tasks.vision.drawn_task import describe_frame
from ponder.tasks.vision.locate_shape import BOX_NOTATION
from ponder.types import Problem
from ponder.verify import AnswerForm, FinalNumber, FinalText, MathAnswer, MultipleChoice
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.verifiers import BoxIoU

AnswerType = Literal["math", "number", "choice", "text", "box"]
QUESTION_COLUMNS = ("problem", "question", "Problem", "Question", "prompt", "input")
ANSWER_COLUMNS = ("answer", "Answer", "final_answer", "solution", "target", "gold")
BOX_SPEC = AnswerSpec("the box", ("tag", "boxed"), BOX_NOTATION, allow_bare=False)
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
    image: str = ""  # the column of the picture or pictures; empty: the questions have none
    answer_type: AnswerType = "math"
    box_format: BoxFormat = "xyxy"  # of gold boxes (answer_type=box)
    box_frame: BoxFrame = "pixels"
    train_data: str | None = None
    limit: int | None = None
    prompt: str = "{question}"
    system: str | None = None
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written
    bad_rows: BadRows = "refuse"

    def __post_init__(self) -> None:
        if self.answer_type not in get_args(AnswerType):
            raise UnknownName("answer_type", self.answer_type, get_args(AnswerType))
        check_box_settings(self.box_format, self.box_frame)
        if self.answer_type == "box" and not self.image:
            raise UsageError("a box is a place in a picture: name the column of the pictures with image=...")
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
    def answer_spec(self) -> AnswerSpec:
        return BOX_SPEC if self.answer_type == "box" else super().answer_spec

    def unused(self) -> dict[str, str]:
        return unused_box_settings(self.answer_type)

    @property
    def verifier(self) -> Scorer:
        if self.answer_type == "box":
            return BoxIoU()
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
        held_out_keys = {row.same_key for row in self._rows(self.data)}
        rows = [row for row in self._rows(self.train_data) if row.same_key not in held_out_keys]
        if not rows:
            raise TaskError(f"{self.train_data} has no question that {self.data} has not, too")
        return self._problems("train", rows)

    def gold(self, problem: Problem) -> str:
        answer = problem.answer
        return self.gold_completion(json.dumps(answer["box"]) if self.answer_type == "box" else str(answer))

    def _problems(self, split: str, rows: list[DatasetRow]) -> Sequence[Problem]:
        def make(row: DatasetRow) -> Problem:
            question = self.prompt.format(question=row.question)
            problem = self.make_problem(f"{self.name}/{split}/{row.id}", question, row.answer, row.tags)
            return with_pictures(problem, row.pictures)

        return MappedProblems(rows[: self.limit], make) if self.image else [make(row) for row in rows[: self.limit]]

    def _rows(self, data: str) -> list[DatasetRow]:
        path = Path(data)
        files = DatasetFiles(path.parent)
        rows = files.read_file(path.name, partial(self._row, path.parent))
        files.report_bad_rows(self.name, self.bad_rows)
        return rows

    def _row(self, folder: Path, record: dict[str, Any], number: int) -> DatasetRow:
        require_columns(record)
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
            k: v
            for k, v in record.items()
            if k not in (question, answer, self.image) and isinstance(v, str | int | float | bool)
        }
        text = str(record[question]).strip()
        pictures = picture_sources(record[self.image], folder) if self.image else ()
        sizes = [picture.size() for picture in pictures]
        if self.answer_type != "box":
            return DatasetRow(own, text, _plain_number(record[answer]), tags=tags, pictures=pictures)
        if len(pictures) != 1:
            raise TaskError(f"the row has {len(pictures)} pictures; a box needs one")
        gold = {"box": self._gold_box(record[answer], sizes[0]), "size": list(sizes[0])}
        return DatasetRow(own, f"{describe_frame(*sizes[0])}\n{text}", gold, tags=tags, pictures=pictures)

    def _gold_box(self, value: Any, size: tuple[int, int]) -> list[float]:
        if isinstance(value, str):  # a cell of a table
            value = parse_json(value)
        return pixel_box(value, size, self.box_format, self.box_frame)


def with_pictures(problem: Problem, sources: Sequence[PictureSource]) -> Problem:
    """The problem with these pictures in its messages."""
    if not sources:
        return problem
    messages = place_pictures(problem.messages, [source.read() for source in sources])
    return replace(problem, messages=tuple(messages))


def unused_box_settings(answer_type: str) -> dict[str, str]:
    reason = "only gold boxes have a format and a frame: answer_type=box"
    return {} if answer_type == "box" else {"box_format": reason, "box_frame": reason}


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
