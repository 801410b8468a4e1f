"""Judges of steps against judges of answers: where code can check a step (sums, countdown and 4 x 4 sudokus), and on a
task of one's own.

A tiny model of characters imitates worked answers and is stopped early. Its own answers to training problems get two
kinds of labels: whether the answer is right, and of each line whether it is (exactly, by code; nothing is sampled for
it). An outcome reward model and an implicit one learn from the first, a process reward model and an implicit one from
the second, all from the same answers. A tenth of the training problems is kept for choosing settings, and nothing
learns from it. `ponder book step-judges` runs this with three seeds and every puzzle, and lets each judge choose among
the same samples. Results: docs/book/step-judges.md.

With `--model` and `--puzzle` a language model first imitates the same answers. With `--model` and `--task` it answers
that task as it is; `--more-tasks` are learned from and tested on, too. Steps end at `--separator`. A task that has an
`ExactSteps` as `step_check` checks them; else rollouts label them as Math-Shepherd's do (Wang et al. 2024,
arXiv:2312.08935): `--completions` of the answer up to each step, a soft label is the share of right ones, and a hard
one is 1 if any is right.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    RecipeBase,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    Validation,
    find_base,
    require_alike,
)
from _checked_steps import PuzzleName, check_start, find_step_check, puzzle_base

from ponder.cli.named_objects import build_task
from ponder.errors import UsageError
from ponder.pipelines.label import Label
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.rewards.step_labelling import MathShepherd, StepLabeller
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan, When
from ponder.train.reward_objectives import (
    ImplicitProcessReward,
    ImplicitReward,
    OutcomeReward,
    ProcessReward,
    RewardObjective,
)

SEPARATOR = "\n"
OTHERS = When("model", other_than=("tiny",))


def recipe(
    model: ModelName = "tiny", task: TaskName = None,
    task_settings: Annotated[TaskSettings, OTHERS] = NO_SETTINGS, template: Annotated[Template, OTHERS] = None,
    max_tokens: Annotated[MaxTokens, OTHERS] = None,
    puzzle: Annotated[PuzzleName | None, "whose lines code checks; None: of the tiny model sums"] = None,
    numbers: Annotated[int | None, "of long sums and countdown; None: 10 and 4", When("puzzle"), GreaterThan(1)] = None,
    limit: Limit = 96,
    problems: Annotated[
        int | None, "training problems to sample answers of; None: of puzzles 1024, else 256", GreaterThan(0)
    ] = None,
    samples: Count = 8, n: Count = 64,
    separator: Annotated[str, "where a step ends", OTHERS] = SEPARATOR,
    completions: Annotated[
        int | None, "of each step, where rollouts label steps; None: 8", OTHERS, GreaterThan(0)
    ] = None,
    labels: Annotated[Literal["soft", "hard"] | None, "that rollouts give; None: soft", OTHERS] = None,
    more_tasks: Annotated[tuple[str, ...], "tasks that are learned from and tested on, too", OTHERS] = (),
    start_steps: Steps = None,
    steps: Annotated[
        int | None, "of each judge; None: of puzzles 400, else what suits the model", GreaterThan(0)
    ] = None,
    lr: Lr = None,
    implicit_lr: Annotated[float | None, "of implicit reward models; None: --lr", GreaterThan(0)] = None,
    warmup_steps: Annotated[int, "of a judge's learning rate"] = 0,
    batch_size: Annotated[Count, "problems whose answers are in a step of a judge"] = 8,
    beta: float = 0.2, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    if not separator:
        raise UsageError("--separator is empty and would cut nowhere: give a text, such as a line break")
    if puzzle is not None:
        of_tasks = {
            "task": task, "template": template, "max-tokens": max_tokens, "completions": completions, "labels": labels,
            "more-tasks": more_tasks, "separator": separator if separator != SEPARATOR else None,
            **{f"task.{name}": value for name, value in task_settings.items()},
        }  # fmt: skip
        if given := [name for name, value in of_tasks.items() if value]:
            raise UsageError(f"the puzzle {puzzle} has its own {', '.join(given)}: leave out --{given[0]}, or --puzzle")
    check_start(start, start_steps)
    if puzzle is not None or (model == "tiny" and task is None):
        b, check = puzzle_base(puzzle or "sums", limit, start_steps, numbers, model)
        problems, steps, tested, checks = problems or 1024, steps or 400, {"": b}, {"": check}
    else:
        if start_steps is not None:
            raise UsageError("--start-steps are of a puzzle's start: a language model starts on a task as it is")
        b, problems = find_base(model, task, task_settings, template, max_tokens, limit), problems or 256
        more = [build_task(name, {}, "more-tasks") for name in more_tasks]
        require_alike([b.task, *more], "more-tasks")
        tested = {"": b} | {f"-{other.name}": replace(b, task=other) for other in more}
        checks = {name: find_labeller(on, task is None, completions, labels) for name, on in tested.items()}
        if len({type(check) for check in checks.values()}) > 1:
            raise UsageError("--more-tasks: code checks the steps of one task and not of another: give tasks alike")
    learned = {suffix: replace(on, task=Validation(on.task)) for suffix, on in tested.items()}  # tested on validation
    stages, first = learned[""].cold_start_stages(seed, start)
    outcomes, labelled = ([f"stage:{kind}{suffix}" for suffix in tested] for kind in ("outcomes", "steps"))
    every = Samples(n, b.sampling)

    def judge(data: list[str], objective: RewardObjective, rate: float | None = lr, **more: Any) -> TrainRewardModel:
        job = b.train_reward_model(data[0], first, objective, seed, steps, rate, batch_size=batch_size, **more)
        return replace(job, data=tuple(data), optimizer=replace(job.optimizer, warmup_steps=warmup_steps))

    for suffix, on in learned.items():
        label = Label(
            on.task, first, b.template_of(first), data=(f"stage:outcomes{suffix}",), labeller=checks[suffix],
            limit=problems, seed=seed, max_concurrency=256, separator=separator,
        )  # fmt: skip
        stages += [
            Stage(f"outcomes{suffix}", on.collect(first, Samples(samples, b.sampling), problems, seed)),
            Stage(f"steps{suffix}", label),
        ]
    rate = implicit_lr or lr
    stages += [
        Stage("orm", judge(outcomes, OutcomeReward())),
        Stage("prm", judge(labelled, ProcessReward(), separator=separator)),
        Stage("implicit", judge(outcomes, ImplicitReward(beta), rate)),
        Stage("implicit-prm", judge(labelled, ImplicitProcessReward(beta), rate, separator=separator)),
    ]
    for suffix, on in tested.items():
        stages += [
            Stage(f"validation{suffix}", learned[suffix].evaluate_with(every, first, seed, max_concurrency=32)),
            Stage(f"test{suffix}", on.evaluate_with(every, first, seed, max_concurrency=32)),
        ]
    return Stages(tuple(stages))


def find_labeller(
    b: RecipeBase, is_sums: bool, completions: int | None, labels: Literal["soft", "hard"] | None
) -> StepLabeller:
    """What labels the steps of answers: code that checks them where the task has any, else rollouts."""
    check = find_step_check(b.task, is_sums)
    if check is None:
        most = completions or 8
        return MathShepherd(max_completions=most, first_round=min(2, most), sampling=b.sampling, kind=labels or "soft")
    if completions is not None or labels is not None:
        raise UsageError(
            f"code checks the steps of the task {b.task.name!r}, without rollouts: leave out --completions and --labels"
        )
    return check
