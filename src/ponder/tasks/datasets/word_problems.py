"""Word problems from public sets: GSM8K, SVAMP, MAWPS. They read the folder that PONDER_DATA names.

$PONDER_DATA/gsm8k/train.jsonl, test.jsonl                                  official split
$PONDER_DATA/svamp/SVAMP.json                                               split by the hash of the ID, about 7:3
$PONDER_DATA/mawps/addsub.jsonl, multiarith.jsonl, singleeq.jsonl, singleop.jsonl       by the hash of the numbers
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow
from ponder.tasks.datasets.dataset_task import DatasetTask, split_by_key
from ponder.tasks.question_identity import split_key
from ponder.types import Problem
from ponder.verify import AnswerForm, FinalNumber, parse_plain_number
from ponder.verify.answers.style import AnswerSpec


@dataclass(frozen=True, kw_only=True)
class WordProblems(DatasetTask):
    """The answer is one number."""

    ANSWER_SPEC = AnswerSpec("the final number")
    DEFAULT_STYLE = "cot"

    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.answer_forms)

    def gold(self, problem: Problem) -> str:
        """The set's own worked solution, where it has one and the style has room for it, then the answer."""
        return self.gold_completion(problem.answer, problem.tags.get("solution", ""))


@dataclass(frozen=True, kw_only=True)
class GSM8K(WordProblems):
    """Grade-school mathematics (Cobbe et al. 2021), 7,473 and 1,319 problems."""

    @property
    def name(self) -> str:
        return "gsm8k"

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        return files.read_jsonl("train.jsonl", _gsm8k), files.read_jsonl("test.jsonl", _gsm8k)


def _gsm8k(record: dict[str, Any], number: int) -> DatasetRow:
    solution, mark, answer = record["answer"].rpartition("####")
    if not mark:
        raise ValueError("no '####' before the answer")
    worked = re.sub(r"<<[^<>]*>>", "", solution).strip()
    noted = re.findall(r"<<([^<>=]*)=[^<>]*>>", solution)  # what the solution gives to a calculator
    tags = {"solution": worked, "expressions": noted}
    return DatasetRow(str(number - 1), record["question"].strip(), _exact_number(answer), tags=tags)


@dataclass(frozen=True, kw_only=True)
class SVAMP(WordProblems):
    """Variations on easy word problems (Patel et al. 2021), 1,000 in one file without a split."""

    @property
    def name(self) -> str:
        return "svamp"

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        return split_by_key(files.read_json("SVAMP.json", _svamp))


def _svamp(record: dict[str, Any], number: int) -> DatasetRow:
    body = record["Body"].strip()
    joint = " " if body.endswith((".", "?", "!", ",")) else ", "
    question = body + joint + record["Question"].strip()
    tags: dict[str, Any] = {"type": str(record["Type"])}
    if equation := str(record.get("Equation", "")).strip():
        tags["expressions"] = [re.sub(r"\.0\b", "", equation).removeprefix("( ").removesuffix(" )")]
    return DatasetRow(record["ID"], question, _exact_number(record["Answer"]), record["ID"], tags)


@dataclass(frozen=True, kw_only=True)
class MAWPS(WordProblems):
    """Four sets of easy word problems (Koncel-Kedziorski et al. 2016), without a split.

    AddSub and SingleEq share many problems, some a word apart. The numbers in a problem and its answer decide
    its side, so that near copies stay together; exact copies are dropped, as is a question with two answers.
    """

    @property
    def name(self) -> str:
        return "mawps"

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        same: dict[str, list[DatasetRow]] = defaultdict(list)
        for part in ("addsub", "multiarith", "singleeq", "singleop"):
            for row in files.read_jsonl(f"{part}.jsonl", _mawps):
                named = DatasetRow(f"{part}-{row.id}", row.question, row.answer, row.split_key, {"set": part})
                same[split_key(row.question)].append(named)
        return split_by_key(rows[0] for rows in same.values() if len({row.answer for row in rows}) == 1)


def _mawps(record: dict[str, Any], number: int) -> DatasetRow:
    question, answer = record["input"].strip(), _exact_number(record["target"])
    figures = sorted(re.findall(r"[0-9]+(?:\.[0-9]+)?", question))
    return DatasetRow(str(number - 1), question, answer, f"{figures} {answer}")


def _exact_number(number: Any) -> str:
    """A gold answer as an exact number: "1,234" -> "1234", 43.0 -> "43", 0.6666666667 -> "2/3"."""
    value = parse_plain_number(str(number)).value
    if value is None or isinstance(number, bool):
        raise ValueError(f"the answer {str(number)[:40]!r} is not a number")
    ratio = value.limit_denominator(100)
    if value.denominator > 10_000 and abs(ratio - value) < Fraction(1, 10**5):
        return str(ratio)  # the file has five or more decimals of a fraction that does not end
    return str(value) if value.denominator == 1 else str(number).strip()
