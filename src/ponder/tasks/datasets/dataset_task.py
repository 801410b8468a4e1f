"""The base class of public data sets, read from the folder PONDER_DATA.

A question that stands in `test` is dropped from `train`, whatever its punctuation. A set made for testing only
has no `train`, and says so when it is asked for one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, get_args

from ponder.errors import TaskError, UsageError
from ponder.protocols import Scorer
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.datasets.dataset_files import BadRows, DatasetFiles, DatasetRow
from ponder.tasks.question_identity import same_question_key
from ponder.tasks.split import hashes_to_test
from ponder.types import Problem

HELD_OUT_TENTHS = 3  # of a set that comes without a split


@dataclass(frozen=True, kw_only=True)
class DatasetTask(StyledTask, ABC):
    """`limit` keeps the first so many problems of each split."""

    NO_TRAIN_REASON: ClassVar[str] = ""  # of a set made for testing only: why it has no training problems

    limit: int | None = None
    prompt: str = "{question}"
    system: str | None = None
    bad_rows: BadRows = "refuse"

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit is {self.limit}; give at least 1, or leave it out to take all problems")
        if self.bad_rows not in get_args(BadRows):
            raise UsageError(f"bad_rows is {self.bad_rows!r}; it is 'refuse' or 'skip'")
        try:
            self.prompt.format(question="")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise UsageError(
                f"the prompt of task {self.name!r} cannot be filled in ({error!r}); its one field is {{question}},"
                " and braces that shall stay are written twice"
            ) from error
        self.verifier  # noqa: B018  builds it, which checks its settings

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def folder(self) -> str:
        """Its folder in PONDER_DATA."""
        return self.name

    @property
    @abstractmethod
    def verifier(self) -> Scorer: ...

    @abstractmethod
    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        """Train and test as the set has them, before `limit` and before overlaps are dropped."""

    @abstractmethod
    def gold(self, problem: Problem) -> str:
        """A completion that the verifier accepts."""

    @property
    def train(self) -> Sequence[Problem]:
        if not self._splits[0]:
            raise TaskError(f"task {self.name!r} has no training problems: {self.NO_TRAIN_REASON}")
        return self._splits[0]

    @property
    def test(self) -> Sequence[Problem]:
        return self._splits[1]

    @cached_property
    def _splits(self) -> tuple[list[Problem], list[Problem]]:
        files = DatasetFiles.in_data_folder(self.folder)
        train, test = self.rows(files)
        files.report_bad_rows(self.name, self.bad_rows)
        held_out_keys = {same_question_key(row.question) for row in test}
        train = [row for row in train if same_question_key(row.question) not in held_out_keys]
        if not test or not (train or self.NO_TRAIN_REASON):
            have = f"{len(train)} training and {len(test)} test problems"
            raise TaskError(f"task {self.name!r} has {have}; put the whole set into PONDER_DATA")
        return self._problems("train", train), self._problems("test", test)

    def _problems(self, split: str, rows: list[DatasetRow]) -> list[Problem]:
        return [
            self.make_problem(f"{self.name}/{split}/{row.id}", self.question_text(row), row.answer, row.tags)
            for row in rows[: self.limit]
        ]

    def question_text(self, row: DatasetRow) -> str:
        """The question in words, without how to answer it."""
        return self.prompt.format(question=row.question)


def split_by_key(rows: Iterable[DatasetRow]) -> tuple[list[DatasetRow], list[DatasetRow]]:
    """Train and test by the hash of each row's key."""
    sides: tuple[list[DatasetRow], list[DatasetRow]] = ([], [])
    for row in rows:
        sides[hashes_to_test(row.split_key, HELD_OUT_TENTHS)].append(row)
    return sides
