"""Word problems from public sets: GSM8K, SVAMP, MAWPS. They read the folder that PONDER_DATA names.

    $PONDER_DATA/gsm8k/train.jsonl, test.jsonl                                  official split
    $PONDER_DATA/svamp/SVAMP.json                                               split by the hash of the ID, about 7:3
    $PONDER_DATA/mawps/addsub.jsonl, multiarith.jsonl, singleeq.jsonl, singleop.jsonl       by the hash of the numbers

A question that stands in `test` is dropped from `train`, whatever its punctuation.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from ponder.errors import TaskError, UsageError
from ponder.tasks.split import held_out
from ponder.types import Problem, user
from ponder.verify import EXPLICIT, FinalNumber, Form, parse, state

HELD_OUT_TENTHS = 3  # of a set that comes without a split


@dataclass(frozen=True, slots=True)
class Row:
    """One problem as its file gives it. `key` decides the side where the set has no split of its own."""

    id: str
    question: str
    answer: str
    key: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WordProblems(ABC):
    """`limit` keeps the first so many problems of each split."""

    limit: int | None = None
    prompt: str = "{question}\nThink step by step, then put the final number in \\boxed{{}}."
    system: str | None = None
    forms: tuple[Form, ...] = EXPLICIT  # the first is how gold is written

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit is {self.limit}; give at least 1, or leave it out to take all problems")
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

    @abstractmethod
    def rows(self) -> tuple[list[Row], list[Row]]:
        """Train and test as the set has them, before `limit` and before overlaps are dropped."""

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.forms)

    @property
    def train(self) -> Sequence[Problem]:
        return self._splits[0]

    @property
    def test(self) -> Sequence[Problem]:
        return self._splits[1]

    def gold(self, problem: Problem) -> str:
        """The set's own worked solution where it has one, then the answer."""
        said = state(problem.answer, self.forms[0])
        worked = problem.tags.get("solution")
        return f"{worked}\n{said}" if worked and self.forms[0] != "bare" else said

    @cached_property
    def _splits(self) -> tuple[list[Problem], list[Problem]]:
        train, test = self.rows()
        held = {normal(row.question) for row in test}
        train = [row for row in train if normal(row.question) not in held]
        if not train or not test:
            have = f"{len(train)} training and {len(test)} test problems"
            raise TaskError(f"task {self.name!r} has {have}; put the whole set into PONDER_DATA")
        return self._problems("train", train), self._problems("test", test)

    def _problems(self, split: str, rows: list[Row]) -> list[Problem]:
        asked = [user(self.prompt.format(question=row.question), self.system) for row in rows[: self.limit]]
        pairs = zip(rows, asked, strict=False)  # `limit` may end `asked` first
        return [Problem(f"{self.name}/{split}/{row.id}", said, row.answer, row.tags) for row, said in pairs]


@dataclass(frozen=True)
class GSM8K(WordProblems):
    """Grade-school mathematics (Cobbe et al. 2021), 7,473 and 1,319 problems."""

    @property
    def name(self) -> str:
        return "gsm8k"

    def rows(self) -> tuple[list[Row], list[Row]]:
        folder = _folder("gsm8k")
        return list(_lines(folder / "train.jsonl", _gsm8k)), list(_lines(folder / "test.jsonl", _gsm8k))


def _gsm8k(record: dict[str, Any], number: int) -> Row:
    solution, mark, answer = record["answer"].rpartition("####")
    if not mark:
        raise ValueError("no '####' before the answer")
    worked = re.sub(r"<<[^<>]*>>", "", solution).strip()  # calculator notes, for a tool that is not here
    return Row(str(number - 1), record["question"].strip(), _number(answer), tags={"solution": worked})


@dataclass(frozen=True)
class SVAMP(WordProblems):
    """Variations on easy word problems (Patel et al. 2021), 1,000 in one file without a split."""

    @property
    def name(self) -> str:
        return "svamp"

    def rows(self) -> tuple[list[Row], list[Row]]:
        path = _folder("svamp") / "SVAMP.json"
        try:
            records = json.loads(_read(path))
        except ValueError as error:
            raise TaskError(f"{path} is not JSON ({error}); download the file again") from error
        if not isinstance(records, list):
            raise TaskError(f"{path} does not hold a list of problems; download the file again")
        return _parted(_row(path, f"problem {i}", _svamp, record, i) for i, record in enumerate(records, 1))


def _svamp(record: dict[str, Any], number: int) -> Row:
    body = record["Body"].strip()
    joint = " " if body.endswith((".", "?", "!", ",")) else ", "
    question = body + joint + record["Question"].strip()
    return Row(record["ID"], question, _number(record["Answer"]), record["ID"], {"type": str(record["Type"])})


@dataclass(frozen=True)
class MAWPS(WordProblems):
    """Four sets of easy word problems (Koncel-Kedziorski et al. 2016), without a split.

    AddSub and SingleEq share many problems, some a word apart. The numbers in a problem and its answer decide
    its side, so that near copies stay together; exact copies are dropped, as is a question with two answers.
    """

    @property
    def name(self) -> str:
        return "mawps"

    def rows(self) -> tuple[list[Row], list[Row]]:
        folder = _folder("mawps")
        same: dict[str, list[Row]] = defaultdict(list)
        for part in ("addsub", "multiarith", "singleeq", "singleop"):
            for row in _lines(folder / f"{part}.jsonl", _mawps):
                named = Row(f"{part}-{row.id}", row.question, row.answer, row.key, {"set": part})
                same[normal(row.question)].append(named)
        return _parted(rows[0] for rows in same.values() if len({row.answer for row in rows}) == 1)


def _mawps(record: dict[str, Any], number: int) -> Row:
    question, answer = record["input"].strip(), _number(record["target"])
    figures = sorted(re.findall(r"[0-9]+(?:\.[0-9]+)?", question))
    return Row(str(number - 1), question, answer, f"{figures} {answer}")


def normal(question: str) -> str:
    """What is left of a question when case, spacing and punctuation do not count."""
    return " ".join(re.findall(r"[a-z0-9]+", question.lower()))


def _number(given: Any) -> str:
    """A gold answer as an exact number: "1,234" -> "1234", 43.0 -> "43", 0.6666666667 -> "2/3"."""
    value = parse(str(given)).value
    if value is None or isinstance(given, bool):
        raise ValueError(f"the answer {str(given)[:40]!r} is not a number")
    ratio = value.limit_denominator(100)
    if value.denominator > 10_000 and abs(ratio - value) < Fraction(1, 10**5):
        return str(ratio)  # the file has five or more decimals of a fraction that does not end
    return str(value) if value.denominator == 1 else str(given).strip()


def _parted(rows: Iterator[Row]) -> tuple[list[Row], list[Row]]:
    """Train and test by the hash of each row's key."""
    sides: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        sides[held_out(row.key, HELD_OUT_TENTHS)].append(row)
    return sides


def _folder(name: str) -> Path:
    root = os.environ.get("PONDER_DATA")
    if not root:
        raise TaskError(f"PONDER_DATA is not set; set it to the folder that holds {name}/ (see ponder.tasks.words)")
    folder = Path(root) / name
    if not folder.is_dir():
        raise TaskError(f"no folder {folder}; set PONDER_DATA to the folder that holds {name}/ (now {root})")
    return folder


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {path} ({error}); set PONDER_DATA to a folder that holds it") from error


def _lines(path: Path, make: Callable[[dict[str, Any], int], Row]) -> Iterator[Row]:
    for number, line in enumerate(_read(path).split("\n"), 1):
        if line.strip():
            yield _row(path, f"line {number}", make, line, number)


def _row(path: Path, where: str, make: Callable[[dict[str, Any], int], Row], given: Any, number: int) -> Row:
    try:
        return make(json.loads(given) if isinstance(given, str) else given, number)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{path}, {where}: malformed ({error!r}); download the file again") from error
