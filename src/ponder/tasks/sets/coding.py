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

from ponder.tasks.sets.files import Files, Row
from ponder.tasks.sets.loaded import Loaded
from ponder.types import Problem
from ponder.verify.code.rows import from_humaneval, from_mbpp
from ponder.verify.code.verdicts import AssertTests
from ponder.verify.style import Wanted


@dataclass(frozen=True, kw_only=True)
class Coding(Loaded):
    """The program is the one code block after the thinking. `share`: the share of tests passed, not all or nothing."""

    STYLE = "answer"

    share: bool = False

    @property
    def verifier(self) -> AssertTests:
        return AssertTests(share=self.share)

    @abstractmethod
    def reference(self, problem: Problem) -> str:
        """The set's own program."""

    def gold(self, problem: Problem) -> str:
        return self.stated(f"```python\n{self.reference(problem).rstrip()}\n```")


@dataclass(frozen=True, kw_only=True)
class HumanEval(Coding):
    """Functions to complete from their signature and docstring (Chen et al. 2021)."""

    NO_TRAIN = "HumanEval is a test set; train on mbpp or on programs, which needs no data, and measure on humaneval"

    WANTED = Wanted("the whole function", place="in a ```python block", bare=False)

    prompt: str = "Complete this function.\n```python\n{question}\n```"

    @property
    def name(self) -> str:
        return "humaneval"

    def rows(self, files: Files) -> tuple[list[Row], list[Row]]:
        return [], files.lines("HumanEval.jsonl.gz", _humaneval)

    def reference(self, problem: Problem) -> str:
        return str(problem.answer["prefix"] + problem.tags["solution"])


def _humaneval(record: dict[str, Any], number: int) -> Row:
    id = record["task_id"].removeprefix("HumanEval/")
    return Row(id, record["prompt"].strip(), from_humaneval(record), tags={"solution": record["canonical_solution"]})


@dataclass(frozen=True, kw_only=True)
class MBPP(Coding):
    """Short functions from a sentence and three tests, which are shown (Austin et al. 2021).

    The authors' split. `sanitized` reads the file that was checked by hand, in which 257 are for testing.
    """

    WANTED = Wanted("the function", place="in a ```python block", bare=False)

    sanitized: bool = False

    @property
    def name(self) -> str:
        return "mbpp"

    def rows(self, files: Files) -> tuple[list[Row], list[Row]]:
        rows = self._all(files)
        return _between(rows, 601, 974), _between(rows, 11, 510)

    def _all(self, files: Files) -> list[Row]:
        return files.records("sanitized-mbpp.json", _mbpp) if self.sanitized else files.lines("mbpp.jsonl", _mbpp)

    @property
    def validation(self) -> Sequence[Problem]:
        """Problems 511 to 600."""
        return self._problems("validation", _between(self._all(Files.of(self.folder)), 511, 600))

    @property
    def few_shot(self) -> Sequence[Problem]:
        """Problems 1 to 10, from which the authors took the examples in their prompts."""
        return self._problems("few-shot", _between(self._all(Files.of(self.folder)), 1, 10))

    def reference(self, problem: Problem) -> str:
        return str(problem.tags["solution"])


def _between(rows: list[Row], first: int, last: int) -> list[Row]:
    return [row for row in rows if first <= int(row.id) <= last]


def _mbpp(record: dict[str, Any], number: int) -> Row:
    told = (record.get("text") or record["prompt"]).strip()
    tests = "\n".join(record["test_list"])
    question = f"{told}\nYour code should pass these tests:\n{tests}"
    solution = record["code"].replace("\r\n", "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some references hold "\\s" and the like, which Python frowns on
        tests_of = from_mbpp(record)
    return Row(str(int(record["task_id"])), question, tests_of, tags={"solution": solution})
