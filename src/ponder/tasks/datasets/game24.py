"""The 1,362 puzzles of Game of 24 with how often people solve them.

$PONDER_DATA/game24/24.csv         test: ranks 901 to 1,000, as in Tree of Thoughts (Yao et al. 2023); train: the rest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ponder import verify
from ponder.errors import TaskError
from ponder.tasks.datasets.dataset_files import DatasetFiles, DatasetRow
from ponder.tasks.datasets.dataset_task import DatasetTask
from ponder.tasks.generated.countdown import solve
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

TEST_RANKS = range(901, 1001)


@dataclass(frozen=True, kw_only=True)
class Game24(DatasetTask):
    """Each number once, + - * / and brackets, exactly 24. `twenty-four` draws such puzzles without a file."""

    ANSWER_SPEC = AnswerSpec("the expression", ("tag", "boxed", "line"), separator=" ")
    DEFAULT_STYLE = "answer"

    prompt: str = "Make 24 from the numbers {question}. Use each number exactly once, with + - * / and brackets."

    @property
    def name(self) -> str:
        return "game24"

    @property
    def verifier(self) -> verify.CountdownVerifier:
        return verify.CountdownVerifier(forms=self.answer_forms)

    def rows(self, files: DatasetFiles) -> tuple[list[DatasetRow], list[DatasetRow]]:
        rows = files.read_csv("24.csv", _puzzle)
        sides: tuple[list[DatasetRow], list[DatasetRow]] = ([], [])
        for row in rows:
            sides[int(row.id) in TEST_RANKS].append(row)
        return sides

    def gold(self, problem: Problem) -> str:
        solution = solve(problem.answer["numbers"], problem.answer["target"])
        if solution is None:
            raise TaskError(f"problem {problem.id!r} has no solution: {problem.answer}; leave it out")
        return self.gold_completion(solution)


def _puzzle(record: dict[str, Any], number: int) -> DatasetRow:
    numbers = sorted(int(n) for n in record["Puzzles"].split())
    if len(numbers) != 4:
        raise ValueError(f"{len(numbers)} numbers, not 4")
    solved = float(record["Solved rate"].removesuffix("%")) / 100
    answer = {"numbers": numbers, "target": 24}
    return DatasetRow(str(int(record["Rank"])), ", ".join(map(str, numbers)), answer, tags={"solved": solved})
