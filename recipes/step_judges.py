"""Judges of steps against judges of answers, where code can check a step: sums, countdown and 4 x 4 sudokus.

A tiny model of characters imitates worked answers and is stopped early. Its own answers to training problems get two
kinds of labels: whether the answer is right, and of each line whether it is (exactly, by code; nothing is sampled for
it). An outcome reward model and an implicit one learn from the first, a process reward model and an implicit one from
the second, all from the same answers. A tenth of the training problems is kept for choosing settings, and nothing
learns from it. `ponder book step-judges` runs this with three seeds and every puzzle, and lets each judge choose among
the same samples. Results: docs/book/step-judges.md.
"""

from dataclasses import replace
from typing import Annotated, Any

from _bases import Count, Limit, Lr, Start, Steps, Validation
from _checked_steps import PuzzleName, puzzle_base

from ponder.pipelines.label import Label
from ponder.pipelines.reward_model import TrainRewardModel
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.train.reward_objectives import (
    ImplicitProcessReward,
    ImplicitReward,
    OutcomeReward,
    ProcessReward,
    RewardObjective,
)


def recipe(
    puzzle: PuzzleName = "sums", limit: Limit = 96,
    problems: Annotated[int, "training problems to sample answers of"] = 1024, samples: Count = 8, n: Count = 64,
    start_steps: Steps = None, steps: Annotated[int, "of each judge"] = 400, lr: Lr = None,
    batch_size: Annotated[Count, "problems whose answers are in a step of a judge"] = 8,
    beta: float = 0.2, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b, check = puzzle_base(puzzle, limit, start_steps)
    learning = replace(b, task=Validation(b.task))  # its test problems are the validation split
    stages, first = learning.cold_start_stages(seed, start)
    outcomes, every = "stage:outcomes", Samples(n, b.sampling)
    label = Label(
        learning.task, first, b.template_of(first), data=(outcomes,), labeller=check, limit=problems, seed=seed,
        max_concurrency=256,
    )  # fmt: skip

    def judge(data: str, objective: RewardObjective, **more: Any) -> TrainRewardModel:
        return b.train_reward_model(data, first, objective, seed, steps, lr, batch_size=batch_size, **more)

    stages += [
        Stage("outcomes", learning.collect(first, Samples(samples, b.sampling), problems, seed)),
        Stage("steps", label),
        Stage("orm", judge(outcomes, OutcomeReward())),
        Stage("prm", judge("stage:steps", ProcessReward(), separator="\n")),
        Stage("implicit", judge(outcomes, ImplicitReward(beta))),
        Stage("implicit-prm", judge("stage:steps", ImplicitProcessReward(beta))),
        Stage("validation", learning.evaluate_with(every, first, seed, max_concurrency=32)),
        Stage("test", b.evaluate_with(every, first, seed, max_concurrency=32)),
    ]
    return Stages(tuple(stages))
