"""s1 on countdown: fine-tune on 1,000 worked answers chosen four ways, then think under budgets.

The tiny base, of characters, has read single attempts, right or wrong. A pool of worked answers takes attempts back
until one is right. From it 1,000 are chosen at random, evenly over domains (tens of the target), the longest ones, or
by all three of quality, difficulty and diversity as s1K was (Muennighoff et al. 2025): a domain at random, and in it a
long answer. Each set fine-tunes the base, as in s1 for five epochs in batches of 16. Then budget forcing with several
strings, control by the prompt (fine-tuned with the number of tokens, the number of attempts left, or a class of
length), rejection by length, and independent samples are measured at several budgets. `ponder book s1` draws them. A
language model reads the same in place of the tiny base; budgets in its prompts count characters. Results of the tiny
base: docs/book/s1.md. With `--base-backtracks 0.5 --base-steps 1000 --string-budget 384` the base reads attempts that
are taken back, too, which is better (docs/tried.md has what was measured of it).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from _bases import Count, Limit, Lr, ModelName, Validation
from _countdown_traces import PUZZLES, TAKEN_BACK, TEMPLATE, ChainCountdown, CountdownTraces, small_model

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Strategy, Task
from ponder.reason.prompts import Prompt
from ponder.reason.strategies import (
    BudgetForcing,
    ClassControl,
    LengthRejection,
    Samples,
    StepControl,
    TokenControl,
)
from ponder.settings import GreaterThan
from ponder.tasks.wrapped_task import WrappedTask
from ponder.train.optimizer import AdamW
from ponder.types import Problem, Sampling

Chosen = Literal["random", "diverse", "longest", "all"]
CHOSEN: tuple[Chosen, ...] = ("random", "diverse", "longest", "all")
BUDGETS = (32, 64, 128, 256)  # tokens of thinking
WAITS = (1, 2, 4)
# Without the end of the line, which begins the end of thinking: after a string that had it, that end went unnoticed.
# "none": the first token of the end of thinking is suppressed, and nothing put in its place.
STRINGS = {"wait": TAKEN_BACK, "alternatively": " alternatively", "hmm": " hmm", "none": ""}
THINK_END, ANSWER_PREFIX = "\n####", " "
TOKENS = "#{tokens}="
STEPS, STEPS_LEFT = "#{steps}=", "{left})"
Length = Literal["short", "long"]
CLASSES: dict[Length, str] = {"short": "#s=", "long": "#l="}
STEP_TOKENS = 32  # an attempt has fewer
MAX_ANSWER_TOKENS = 24
STEPS_OF_S1 = 315  # five epochs of 1,000 answers
BATCH_SIZE_OF_S1 = 16
WEIGHT_STD = 0.08  # sqrt(2 / (5 width)): from 0.02 the tiny base copies far less (docs/tried.md)


def recipe(
    model: ModelName = "tiny",
    numbers: Annotated[int, "of a puzzle", GreaterThan(1)] = 4,
    count: Annotated[int, "worked answers to fine-tune on", GreaterThan(0)] = 1000,
    pool: Annotated[int, "puzzles to choose them from", GreaterThan(0)] = 8000,
    base_steps: Count = 600, base_lr: Lr = None,
    base_backtracks: Annotated[float, "share of the misses that the base has read taken back"] = 0.0, lr: Lr = None,
    steps: Annotated[int, "of fine-tuning on the worked answers", GreaterThan(0)] = STEPS_OF_S1,
    batch_size: Annotated[int, "worked answers in such a step", GreaterThan(0)] = BATCH_SIZE_OF_S1,
    n: Annotated[int, "independent samples of a problem", GreaterThan(0)] = 32, limit: Limit = 192,
    string_budget: Annotated[int, "tokens of thinking where strings lengthen it", GreaterThan(0)] = 256,
    validation: Annotated[bool, "measure on problems kept out of training, to choose settings"] = False,
    seed: int = 0,
) -> Stages:  # fmt: skip
    size = {"numbers": numbers, "fewest": numbers, **PUZZLES}
    attempts: Task = CountdownTraces(backtracks=base_backtracks, checks=True, **size)
    puzzles: Task = ChainCountdown(**size)
    worked: Task = CountdownTraces(backtracks=1.0, checks=True, max_attempts=12, **size)
    if validation:
        attempts, puzzles, worked = Validation(attempts), Validation(puzzles), Validation(worked)
    tiny, context = model == "tiny", 64 + 12 * 9 * numbers
    base_lr, lr = base_lr or (4e-3 if tiny else 1e-4), lr or (3e-3 if tiny else 5e-5)
    scratch = small_model(context, seed, "".join((*STRINGS.values(), *CLASSES.values())), WEIGHT_STD)
    read = FineTune(
        attempts, scratch if tiny else model, TEMPLATE if tiny else "qa",
        optimizer=AdamW(lr=base_lr, warmup_steps=base_steps // 10, decay_steps=base_steps), steps=base_steps,
        batch_size=64, save_every=base_steps, seed=seed,
    )  # fmt: skip
    stages = [Stage("base", read)]
    sampling = Sampling(max_tokens=max(BUDGETS) + MAX_ANSWER_TOKENS)

    def tune(name: str, data: Task) -> None:
        optimizer = AdamW(lr=lr, warmup_steps=steps // 10, decay_steps=steps)
        stages.append(Stage(name, FineTune(data, "stage:base", optimizer=optimizer, steps=steps,
                                           batch_size=batch_size, save_every=steps, seed=seed)))  # fmt: skip

    def measure(name: str, tuned: str, way: Strategy) -> None:
        job = Evaluate(puzzles, f"stage:{tuned}", strategy=way, limit=limit, seed=seed, max_concurrency=64)
        stages.append(Stage(name, job))

    for chosen in CHOSEN:
        tune(chosen, ChosenAnswers(worked, chosen, count, pool, seed))
        measure(f"{chosen}-samples", chosen, Samples(n if chosen == "all" else min(n, 4), sampling))  # "all" votes
        for budget in BUDGETS:
            measure(f"{chosen}-forced-{budget}", chosen, forced(budget))
    lengthened = forced(string_budget)
    if string_budget != max(BUDGETS):
        measure("unlengthened", "all", lengthened)
    for name, string in STRINGS.items():
        for waits in WAITS:
            measure(f"string-{name}-{waits}", "all", replace(lengthened, waits=waits, wait_word=string))
    chosen_answers = ChosenAnswers(worked, "all", count, pool, seed)
    tune("conditional", StatesTokens(chosen_answers))
    tune("stepwise", CountsSteps(chosen_answers))
    tune("classes", StatesClass(chosen_answers))
    for length in CLASSES:
        measure(f"class-{length}", "classes", ClassControl(length, CLASSES["short"], CLASSES["long"], sampling))
    for budget in BUDGETS:
        measure(f"token-conditional-{budget}", "conditional", TokenControl(budget, TOKENS, sampling))
        measure(f"step-conditional-{budget}", "stepwise", stepwise(budget))
        measure(f"rejection-{budget}", "all", LengthRejection(budget + MAX_ANSWER_TOKENS, sampling=sampling))
    return Stages(tuple(stages))


def forced(budget: int) -> BudgetForcing:
    """Thinking that ends at a budget, and is not lengthened."""
    answer = Sampling(max_tokens=MAX_ANSWER_TOKENS)  # greedy thinking would make the same attempt again
    return BudgetForcing(budget, waits=0, think_end=THINK_END, answer_prefix=ANSWER_PREFIX, sampling=answer)


def stepwise(budget: int) -> StepControl:
    """So many attempts, each with the number of those left ahead of it."""
    return StepControl(
        budget // STEP_TOKENS, STEP_TOKENS, STEPS, STEPS_LEFT, step_separator=f"{TAKEN_BACK}\n", think_end=THINK_END,
        answer_prefix=ANSWER_PREFIX, sampling=Sampling(max_tokens=MAX_ANSWER_TOKENS),
    )  # fmt: skip


@dataclass(frozen=True)
class ChosenAnswers(WrappedTask):
    """So many training problems of a task, chosen by their worked answers, of which only right ones are taken."""

    task: Task
    by: Chosen
    count: int
    pool: int
    seed: int

    @cached_property
    def _problems(self) -> Sequence[Problem]:
        return choose(self.task, self.by, self.count, self.pool, self.seed)

    @property
    def train(self) -> Sequence[Problem]:
        return self._problems


def choose(task: Task, by: Chosen, count: int, pool: int, seed: int) -> list[Problem]:
    rng = random.Random(f"choose {seed}")
    verifier: Any = task.verifier
    found: dict[str, tuple[Problem, str]] = {}
    for problem in task.train[:pool]:
        text = task.gold(problem)
        if verifier.grade(text, problem.answer).value == 1.0:
            found.setdefault(problem.question, (problem, text))
    items = sorted(found.values(), key=lambda item: item[0].question)
    rng.shuffle(items)
    if by == "random":
        return [problem for problem, _ in items[:count]]
    longest = sorted(items, key=lambda item: -len(item[1]))
    if by == "longest":
        return [problem for problem, _ in longest[:count]]
    domains: dict[int, list[Problem]] = {}
    for problem, _ in longest if by == "all" else items:
        domains.setdefault(problem.answer["target"] // 10, []).append(problem)
    out: list[Problem] = []
    while len(out) < count and domains:
        key = rng.choice(sorted(domains))
        left = domains[key]
        place = 0
        while by == "all" and place + 1 < len(left) and rng.random() < 0.5:  # the place of rank r has 2 ** -r
            place += 1
        out.append(left.pop(place))
        if not left:
            del domains[key]
    return out


@dataclass(frozen=True)
class StatesLength(WrappedTask):
    """A task whose training problems state how long the thinking of their worked answer is, in one way or another."""

    task: Task

    @property
    def train(self) -> Sequence[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> Sequence[Problem]:
        thinking = [self.task.gold(problem).split(THINK_END)[0] for problem in self.task.train]
        instructions = self.instructions(thinking)
        return [
            replace(problem, messages=tuple(Prompt(instruction).messages(problem.messages)))
            for problem, instruction in zip(self.task.train, instructions, strict=True)
        ]

    def instructions(self, thinking: Sequence[str]) -> list[str]:
        raise NotImplementedError


@dataclass(frozen=True)
class StatesTokens(StatesLength):
    """States the tokens, up to the next budget."""

    def instructions(self, thinking: Sequence[str]) -> list[str]:
        budgets = (next((b for b in BUDGETS if b >= len(text)), BUDGETS[-1]) for text in thinking)
        return [TOKENS.replace("{tokens}", str(budget)) for budget in budgets]


@dataclass(frozen=True)
class StatesClass(StatesLength):
    """States whether the thinking is longer than half of the others."""

    def instructions(self, thinking: Sequence[str]) -> list[str]:
        median = sorted(map(len, thinking))[len(thinking) // 2]
        return [CLASSES["long" if len(text) >= median else "short"] for text in thinking]


@dataclass(frozen=True)
class CountsSteps(StatesLength):
    """States the number of attempts, and before each how many are left."""

    def instructions(self, thinking: Sequence[str]) -> list[str]:
        return [STEPS.replace("{steps}", str(len(text.split("\n")))) for text in thinking]

    def gold(self, problem: Problem) -> str:
        thinking, end, answer = self.task.gold(problem).partition(THINK_END)
        attempts = thinking.split("\n")
        left = range(len(attempts), 0, -1)
        counted = (STEPS_LEFT.replace("{left}", str(k)) + line for k, line in zip(left, attempts, strict=True))
        return "\n".join(counted) + end + answer
