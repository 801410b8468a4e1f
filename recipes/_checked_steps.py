"""Puzzles whose steps code can check, each with a tiny model of characters that has a line for a step, or with a
language model that imitates the same lines.

sums        `3+1+4=` is answered by `3+1=4`, `4+4=8`, `#### 8`; a line is right where it adds the next number. The tiny
            model's own sums
countdown   `6,2,3>5=` by `6+2=8`, `8-3=5`, `#### 6+2-3`; a line is right where it adds or subtracts the next number
            and the target can still be reached from there. Most attempts that the model imitates miss the target
sudoku      `12..3...` (4 x 4 cells) by its rows and `#### ` with all of them; a line is right where it is a row of the
            only solution
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations, product
from typing import Any, Literal

from _bases import BASES, RecipeBase, StepsAndRate, find_base
from _countdown_traces import PUZZLES, ChainCountdown, make_attempt, random_attempt, solution

from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rewards.step_labelling import ExactSteps, ExactStepScorer
from ponder.protocols import Scorer, Task
from ponder.tasks import Sums
from ponder.tasks.generated.sudoku import Sudoku, SudokuItem, make_puzzle, solutions
from ponder.tasks.split import stable_hash
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Problem, Sampling, Score, Trace
from ponder.verify import FinalNumber

PuzzleName = Literal["sums", "long-sums", "countdown", "sudoku"]
SIDE = 4
COUNTDOWN_MODEL = ScratchModel("0123456789+-#,>=\n ", width=64, layers=2, context=96, weight_std=0.08)
SUDOKU_MODEL = ScratchModel("1234.=#\n ", width=64, layers=2, context=80, weight_std=0.08)
LONG_SUMS_MODEL = ScratchModel("0123456789+=#\n ", width=64, layers=2, weight_std=0.08)
ANSWER_MARK = "#### "
NUMBERS: dict[PuzzleName, int] = {"long-sums": 10, "countdown": 4}  # of a puzzle, where they can be chosen
TINY_BELOW, BELOW = 10, 100  # the numbers of long sums lie below, of the tiny model and of others
START_STEPS: dict[PuzzleName, int] = {"sums": 300, "long-sums": 300, "countdown": 600, "sudoku": 400}
LANGUAGE_MODEL_START: dict[PuzzleName, StepsAndRate] = {
    "long-sums": StepsAndRate(40, 1e-4), "countdown": StepsAndRate(150, 1e-4),
}  # fmt: skip
MAX_TOKENS: dict[PuzzleName, int] = {"sums": 40, "countdown": 48, "sudoku": 48}
TOKENS_PER_NUMBER = 10  # that a further number of countdown adds to an answer: 35+7=42, a line break, and +7


@dataclass(frozen=True)
class SteppedCountdown(ChainCountdown):
    """Countdown by plus and minus, worked in a line for each number. A worked answer is a solution with the chance
    `hits`, else an attempt at random: who imitates only solutions learns to write the target after any line."""

    hits: float = 0.3

    def gold(self, problem: Problem) -> str:
        numbers, target = problem.answer["numbers"], problem.answer["target"]
        rng = random.Random(stable_hash(f"attempt {self.seed} {problem.id} {numbers} {target}"))
        found = (solution if rng.random() < self.hits else random_attempt)(numbers, rng, target)
        before = (numbers[0], *found.values)
        steps = zip(before, found.signs, numbers[1:], found.values, strict=False)
        return "\n".join([*(f"{a}{sign}{n}={v}" for a, sign, n, v in steps), ANSWER_MARK + found.expression])


@dataclass(frozen=True, kw_only=True)
class RowSudoku(Sudoku):
    """4 x 4 sudokus in one line, answered row by row, then as one number after a mark."""

    clues: int = 9

    @property
    def verifier(self) -> FinalNumber:  # type: ignore[override]
        return FinalNumber(("hash",))

    def problem(self, item: SudokuItem, id: str) -> Problem:
        clues = make_puzzle(item, self.side, self.clues)
        solved = "".join(map(str, next(solutions(clues))))
        question = "".join(str(n or ".") for n in clues)
        return Problem(id, ({"role": "user", "content": f"{question}="},), solved, {"clues": self.clues})

    def gold(self, problem: Problem) -> str:
        return "\n".join([*sudoku_rows(problem), ANSWER_MARK + problem.answer])


def sudoku_rows(problem: Problem) -> list[str]:
    return [problem.answer[i : i + SIDE] for i in range(0, SIDE * SIDE, SIDE)]


@dataclass(frozen=True, kw_only=True)
class SumSteps(ExactSteps):
    def is_right(self, problem: Problem, before: Sequence[str], step: str) -> bool:
        terms, k = problem.tags["terms"], len(before)
        if k >= len(terms) - 1:
            return k == len(terms) - 1 and step == f"{ANSWER_MARK}{sum(terms)}"
        total = sum(terms[: k + 1])
        return step == f"{total}+{terms[k + 1]}={total + terms[k + 1]}\n"


@dataclass(frozen=True, kw_only=True)
class CountdownSteps(ExactSteps):
    def is_right(self, problem: Problem, before: Sequence[str], step: str) -> bool:
        numbers, target = problem.answer["numbers"], problem.answer["target"]
        signs = "".join(_sign(line) for line in before)
        if len(before) == len(numbers) - 1:
            return step == ANSWER_MARK + make_attempt(numbers, signs).expression
        if len(before) > len(numbers) - 1:
            return False
        used = len(before) + 1
        value = make_attempt(numbers[:used], signs).values[-1] if before else numbers[0]
        for sign in "+-":
            after = value + numbers[used] if sign == "+" else value - numbers[used]
            if step == f"{value}{sign}{numbers[used]}={after}\n":
                return can_reach(after, numbers[used + 1 :], target)
        return False


@dataclass(frozen=True, kw_only=True)
class SudokuSteps(ExactSteps):
    def is_right(self, problem: Problem, before: Sequence[str], step: str) -> bool:
        lines = [*(f"{row}\n" for row in sudoku_rows(problem)), ANSWER_MARK + problem.answer]
        return len(before) < len(lines) and step == lines[len(before)]


@dataclass(frozen=True)
class SumOracle(ExactStepScorer):
    check: ExactSteps = SumSteps()


@dataclass(frozen=True)
class CountdownOracle(ExactStepScorer):
    check: ExactSteps = CountdownSteps()


@dataclass(frozen=True)
class SudokuOracle(ExactStepScorer):
    check: ExactSteps = SudokuSteps()


# A perfect judge of each puzzle's steps, as the guide of a search.
ORACLES: dict[PuzzleName, type[ExactStepScorer]] = {
    "sums": SumOracle, "long-sums": SumOracle, "countdown": CountdownOracle, "sudoku": SudokuOracle,
}  # fmt: skip


def find_step_check(task: Task, is_sums: bool) -> ExactSteps | None:
    """What checks the steps of a task's answers: the task's own `step_check`, or that of sums."""
    check = SumSteps() if is_sums else getattr(task, "step_check", None)
    if check is not None and not isinstance(check, ExactSteps):
        raise UsageError(f"the step_check of the task {task.name!r} is no ExactSteps: make it one, or leave it out")
    return check


@dataclass(frozen=True)
class RightLines:
    """An answer is right where its result is and each of its lines, too: not where errors cancel out, or where the
    result was guessed or known."""

    verifier: Scorer
    check: ExactSteps

    @property
    def name(self) -> str:
        return self.verifier.name

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        found = await self.verifier(trace, steps)
        return [self._score(trace, step, score) for step, score in zip(steps, found, strict=True)]

    def _score(self, trace: Trace, step: int, score: Score) -> Score:
        wrong = score.value == 1.0 and not self.check.are_right_lines(trace.problem, trace.text(step))
        return replace(score, value=0.0, reason="a line is wrong") if wrong else score


@dataclass(frozen=True)
class CheckedLines(WrappedTask):
    """A task whose answers are right only where all their lines are."""

    task: Task
    check: ExactSteps

    @property
    def verifier(self) -> RightLines:
        return RightLines(self.task.verifier, self.check)


@dataclass(frozen=True)
class ReorderedTest(WrappedTask):
    """Countdown with every held-out set of numbers and target in up to `orders` orders that have a solution. What is
    held out is held out in all orders."""

    task: SteppedCountdown
    orders: int = 1

    @cached_property
    def test(self) -> Sequence[Problem]:
        out: list[Problem] = []
        for problem in self.task.test:
            numbers, target = problem.answer["numbers"], problem.answer["target"]
            able = [own for own in sorted(set(permutations(numbers))) if can_reach(own[0], own[1:], target)]
            random.Random(stable_hash(f"orders {problem.id}")).shuffle(able)
            chosen = able[: self.orders]
            out += [self.task.problem((own, target), f"{problem.id}/{k}") for k, own in enumerate(chosen)]
        return out


def can_reach(value: int, numbers: Sequence[int], target: int) -> bool:
    """Whether signs between the numbers lead from a value to the target."""
    return any(
        value + sum(sign * n for sign, n in zip(signs, numbers, strict=True)) == target
        for signs in product((1, -1), repeat=len(numbers))
    )


def _sign(line: str) -> str:
    """The operation of a right line such as -3+4=1."""
    return "+" if "+" in line else "-"


def find_puzzle(
    name: PuzzleName, numbers: int | None = None, below: int = TINY_BELOW
) -> tuple[Task, ExactSteps, ScratchModel]:
    """The task, the check of its steps, and a model of its characters. `numbers`: of long sums and countdown, whose
    answers have as many lines; those of long sums lie below `below`."""
    if numbers is not None and name not in NUMBERS:
        raise UsageError(f"the puzzle {name} has one size: leave out --numbers, or take {' or '.join(NUMBERS)}")
    numbers = numbers or NUMBERS.get(name, 0)
    if name == "sums":
        tiny = BASES["tiny"]
        assert isinstance(tiny.model, ScratchModel)
        return tiny.task, SumSteps(), tiny.model
    if name == "long-sums":
        task = Sums(terms=numbers, limit=below, prompt="{sum}=", forms=("hash",))
        context = numbers * (len(str(below - 1)) + 1) + longest_sum(numbers, below)
        return task, SumSteps(), replace(LONG_SUMS_MODEL, context=context + 8)
    if name == "countdown":
        size: dict[str, Any] = {"numbers": numbers, "fewest": numbers, **PUZZLES}
        return SteppedCountdown(**size), CountdownSteps(), COUNTDOWN_MODEL
    return RowSudoku(), SudokuSteps(), SUDOKU_MODEL


def longest_sum(numbers: int, below: int) -> int:
    """The most characters that a worked sum has, and its end."""
    digits, total = len(str(below - 1)), len(str(numbers * (below - 1)))
    return (numbers - 1) * (2 * total + digits + len("+=\n")) + len(ANSWER_MARK) + total + 1


def check_start(start: str | None, start_steps: int | None) -> None:
    """Refuse a length of training for a start that is given."""
    if start is not None and start_steps is not None:
        raise UsageError("--start is trained already: leave out --start-steps, or --start")


def puzzle_base(
    puzzle: PuzzleName, limit: int, start_steps: int | None = None, numbers: int | None = None, model: str = "tiny"
) -> tuple[RecipeBase, ExactSteps]:
    """The tiny base on a puzzle, or a language model that first imitates its lines, and the check of its steps."""
    tiny = model == "tiny"
    task, check, scratch = find_puzzle(puzzle, numbers, TINY_BELOW if tiny else BELOW)
    if puzzle == "long-sums":
        max_tokens = longest_sum(len(task.train[0].tags["terms"]), task.limit)
    else:
        further = (numbers or NUMBERS[puzzle]) - NUMBERS[puzzle] if puzzle in NUMBERS else 0
        max_tokens = MAX_TOKENS[puzzle] + TOKENS_PER_NUMBER * further
    sampling = Sampling(max_tokens=max_tokens)
    if tiny:
        base = BASES["tiny"]
        cold_start = replace(base.cold_start, steps=start_steps or START_STEPS[puzzle])
        own: dict[str, Any] = {"model": scratch, "student": scratch, "cold_start": cold_start}
    else:
        if puzzle not in LANGUAGE_MODEL_START:
            raise UsageError(f"the puzzle {puzzle} is the tiny model's: take {' or '.join(LANGUAGE_MODEL_START)}")
        base, cold_start = find_base(model), LANGUAGE_MODEL_START[puzzle]
        own = {"cold_start": replace(cold_start, steps=start_steps or cold_start.steps)}
    return replace(base, task=task, sampling=sampling, limit=limit, **own), check
