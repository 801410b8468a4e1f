"""Programming problems with unit tests: HumanEval and MBPP.

$PONDER_DATA/humaneval/HumanEval.jsonl.gz      164 problems, for testing only
$PONDER_DATA/mbpp/mbpp.jsonl                   974 problems: 11 to 510 are for testing, 601 to 974 for training
$PONDER_DATA/mbpp/sanitized-mbpp.json          the 427 of them that were checked by hand
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.code.assert_tests import AssertTests
from ponder.verify.code.dataset_rows import from_humaneval, from_mbpp


@dataclass(frozen=True, kw_only=True)
class CodingTask(DatasetTask):
    """The program is the one code block after the thinking. `partial_credit` rewards the share of tests passed."""

    DEFAULT_STYLE = "answer"

    partial_credit: bool = False

    @property
    def verifier(self) -> AssertTests:
        return AssertTests(partial_credit=self.partial_credit)

    @abstractmethod
    def reference_solution(self, problem: Problem) -> str:
        """The set's own program."""

    def gold(self, problem: Problem) -> str:
        return self.gold_completion(f"```python\n{self.reference_solution(problem).rstrip()}\n```")


@dataclass(frozen=True, kw_only=True)
class HumanEval(CodingTask):
    """Functions to complete from their signature and docstring (Chen et al. 2021)."""

    NO_TRAIN_REASON = (
        "HumanEval is a test set; train on mbpp or on programs, which needs no data, and measure on humaneval"
    )

    ANSWER_SPEC = AnswerSpec("the whole function", place="in a ```python block", allow_bare=False)

    prompt: str = "Complete this function.\n```python\n{question}\n```"

    @property
    def name(self) -> str:
        return "humaneval"

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        return [], files.read_jsonl("HumanEval.jsonl.gz", _humaneval)

    def reference_solution(self, problem: Problem) -> str:
        return str(problem.answer["prefix"] + problem.tags["solution"])


def _humaneval(record: dict[str, Any], number: int) -> DatasetRow:
    id = record["task_id"].removeprefix("HumanEval/")
    return DatasetRow(
        id, record["prompt"].strip(), from_humaneval(record), tags={"solution": record["canonical_solution"]}
    )


@dataclass(frozen=True, kw_only=True)
class MBPP(CodingTask):
    """Short functions from a sentence and three tests, which are shown (Austin et al. 2021).

    The authors' split. `sanitized` reads the file that was checked by hand, in which 257 are for testing.
    """

    ANSWER_SPEC = AnswerSpec("the function", place="in a ```python block", allow_bare=False)

    sanitized: bool = False

    @property
    def name(self) -> str:
        return "mbpp"

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        rows = self._all(files)
        return _between(rows, 601, 974), _between(rows, 11, 510)

    def _all(self, files: DatasetFiles) -> list[DatasetRow]:
        return (
            files.read_json("sanitized-mbpp.json", _mbpp) if self.sanitized else files.read_jsonl("mbpp.jsonl", _mbpp)
        )

    @property
    def validation(self) -> Sequence[Problem]:
        """Problems 511 to 600."""
        return self._problems("validation", _between(self._all(DatasetFiles.in_data_folder(self.folder)), 511, 600))

    @property
    def few_shot(self) -> Sequence[Problem]:
        """Problems 1 to 10, from which the authors took the examples in their prompts."""
        return self._problems("few-shot", _between(self._all(DatasetFiles.in_data_folder(self.folder)), 1, 10))

    def reference_solution(self, problem: Problem) -> str:
        return str(problem.tags["solution"])


def _between(rows: list[DatasetRow], first: int, last: int) -> list[DatasetRow]:
    return [row for row in rows if first <= int(row.id) <= last]


def _mbpp(record: dict[str, Any], number: int) -> DatasetRow:
    statement = (record.get("text") or record["prompt"]).strip()
    tests = "\n".join(record["test_list"])
    question = f"{statement}\nYour code should pass these tests:\n{tests}"
    solution = record["code"].replace("\r\n", "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some references hold "\\s" and the like, which Python frowns on
        tests_of = from_mbpp(record)
    return DatasetRow(str(int(record["task_id"])), question, tests_of, tags={"solution": solution})
