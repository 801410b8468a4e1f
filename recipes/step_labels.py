"""How many labelled answers do judges need? Outcome against process reward models, from few answers to many.

A tiny model of characters imitates attempts at countdown, worked in a line for each number, and is stopped early. Its
own answers to fresh training problems get a verdict, and of each line exactly, by code, whether it is right. The first
256, 1,024 ... of these answers train an outcome and a process reward model and implicit ones of both labels, each for a
few and for more steps. Beside them outcome models learn from near misses: of many answers to each of some problems all
right ones, and as many wrong ones that are nearest to a right one, or at random. A tenth of the training problems is
kept for choosing settings, and nothing learns from it. In countdown the last line shows whether an answer is right; in
`--puzzle long-sums` an error may be in any line. A language model (`--model`) first imitates the same. `ponder book
step-labels` runs this with three seeds. Results: docs/book/step-labels.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

from _bases import Count, Limit, Lr, ModelName, Start, Steps, Validation
from _checked_steps import NUMBERS, check_start, puzzle_base

from ponder.errors import UsageError
from ponder.pipelines.label import Label
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rewards.negatives import Negatives
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.tasks.wrapped_task import WrappedTask
from ponder.train.reward_objectives import (
    ImplicitProcessReward,
    ImplicitReward,
    OutcomeReward,
    ProcessReward,
)
from ponder.types import Problem

JUDGES = ("orm", "prm", "implicit", "implicit-prm")
OF_STEPS = ("prm", "implicit-prm")  # learn labels of lines, the others verdicts
NEGATIVES: tuple[Negatives, ...] = ("near", "random")
POOL_BATCH = 8  # problems whose answers are in a step of a judge that learns from chosen negatives


@dataclass(frozen=True)
class DistinctProblems(WrappedTask):
    """A task with the first `count` different training problems."""

    task: Task
    count: int

    @cached_property
    def train(self) -> Sequence[Problem]:
        found: dict[str, Problem] = {}
        for problem in self.task.train:
            found.setdefault(problem.question, problem)
            if len(found) == self.count:
                break
        return list(found.values())


def recipe(
    model: ModelName = "tiny",
    puzzle: Annotated[Literal["countdown", "long-sums"], "whose lines code checks"] = "countdown",
    numbers: Annotated[
        int | None, "of a puzzle, and lines of its answers; None: 4, and 10 of sums", GreaterThan(1)
    ] = None,
    sizes: Annotated[tuple[int, ...], "labelled answers that judges learn from, ascending"] = (256, 1024, 4096, 12288),
    samples: Annotated[Count, "answers to each of their problems"] = 2,
    steps: Annotated[tuple[int, ...], "of a judge: one is trained for each, to choose from"] = (100, 400),
    answers: Annotated[Count, "answers, about, in a step of a judge"] = 32,
    negatives: Annotated[bool, "also learn verdicts on near misses, and on other wrong answers"] = True,
    pool: Annotated[Count, "problems whose near misses are learned from"] = 1024,
    pool_samples: Annotated[Count, "answers to each of them"] = 16,
    limit: Limit = 96, n: Count = 64,
    validation_n: Annotated[Count, "samples of each validation problem"] = 16,
    start_steps: Steps = None, lr: Lr = None,
    implicit_lr: Annotated[float | None, "of implicit reward models; None: --lr", GreaterThan(0)] = None,
    beta: float = 0.2, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    check_numbers(sizes, samples, steps)
    check_start(start, start_steps)
    b, check = puzzle_base(puzzle, limit, start_steps, numbers, model)
    learning = replace(b, task=Validation(b.task))  # its test problems are the validation split
    different = DistinctProblems(learning.task, max(pool, sizes[-1] // samples))
    if (found := len(different.train)) < different.count:
        raise UsageError(
            f"{puzzle} with {numbers or NUMBERS[puzzle]} numbers has {found:,} different training problems, and"
            f" {different.count:,} are"
            " needed: give smaller --sizes or --pool, or more --numbers"
        )
    distinct = replace(learning, task=different)
    stages, first = learning.cold_start_stages(seed, start)

    def judge(name: str, data: tuple[str, ...], count: int, **more: Any) -> TrainRewardModel:
        """Verdicts and labels of lines lie beside the same answers: a judge reads one of them."""
        own = {"prm": ProcessReward(), "implicit-prm": ImplicitProcessReward(beta), "orm": OutcomeReward()}
        rate = implicit_lr or lr if name.startswith("implicit") else lr
        job = b.train_reward_model("", first, own.get(name, ImplicitReward(beta)), seed, count, rate, **more)
        scorer = LABEL_SCORE if name in OF_STEPS else b.task.verifier.name
        return replace(job, data=data, scorer=scorer, held_out_tenths=0)

    parts: list[str] = []
    for before, size in pairwise((0, *sizes)):
        place, count = before // samples, (size - before) // samples
        outcomes = f"outcomes-{size}"
        label = Label(
            distinct.task, first, b.template_of(first), data=(f"stage:{outcomes}",), labeller=check, limit=count,
            seed=seed, max_concurrency=256,
        )  # fmt: skip
        stages += [
            Stage(outcomes, distinct.collect(first, Samples(samples, b.sampling), count, seed, place)),
            Stage(f"steps-{size}", label),
        ]
        parts.append(f"stage:steps-{size}")
        per_step = max(1, answers // samples)
        stages += [
            Stage(f"{name}-{size}-{count}", judge(name, tuple(parts), count, batch_size=per_step))
            for name in JUDGES
            for count in steps
        ]
    if negatives:
        stages.append(Stage("pool", distinct.collect(first, Samples(pool_samples, b.sampling), pool, seed)))
        stages += [
            Stage(f"orm-{how}-{count}", judge("orm", ("stage:pool",), count, batch_size=POOL_BATCH, negatives=how))
            for how in NEGATIVES
            for count in steps
        ]
    few = Samples(validation_n, b.sampling)
    stages += [
        Stage("validation", learning.evaluate_with(few, first, seed, max_concurrency=32)),
        Stage("test", b.evaluate_with(Samples(n, b.sampling), first, seed, max_concurrency=32)),
    ]
    return Stages(tuple(stages))


def check_numbers(sizes: Sequence[int], samples: int, steps: Sequence[int]) -> None:
    """Refuse numbers of answers and of steps that judges cannot have."""
    given = ",".join(map(str, sizes))
    if not sizes or any(size <= before or size % samples for before, size in pairwise((0, *sizes))):
        raise UsageError(f"--sizes {given}: give numbers above 0 that ascend, each a multiple of --samples {samples}")
    if not steps or min(steps) < 1 or len(set(steps)) < len(steps):
        raise UsageError(f"--steps {','.join(map(str, steps))}: give numbers above 0, each once")
