"""Counting (R1-V in small): a vision-language model learns to count shapes by GRPO on right and wrong.

The model of `visual_rft` first imitates a teacher who often names a number at random. Then it samples numbers for each
picture, and the reward is 1 for the right one. Both models are measured on held-out pictures that no setting was chosen
on, and the second one also with grey pictures in their place: one to five shapes, so chance is 20 %.
"""

from typing import Annotated

from _shapes import (
    ColdStartBatch,
    ColdStartLr,
    ColdStartSteps,
    CountAlike,
    GroupSize,
    Limit,
    Lr,
    Model,
    Pace,
    Pictures,
    PicturesPerStep,
    Steps,
    choose_pace,
    make_stages,
)

from ponder.pipelines.stages import Stages
from ponder.settings import GreaterThan
from ponder.types import Sampling

SAMPLING = Sampling(max_tokens=12)  # of `\boxed{3}` and its end
TINY = Pace(
    cold_start_steps=1200, cold_start_batch=32, cold_start_lr=2e-3, steps=200, problems_per_step=32, group_size=8,
    lr=7e-4,
)  # fmt: skip
LARGE = Pace(
    cold_start_steps=400, cold_start_batch=64, cold_start_lr=5e-4, steps=200, problems_per_step=32, group_size=16,
    lr=1e-4,
)  # fmt: skip


def recipe(
    model: Model = "tiny",
    most: Annotated[int, "shapes in a picture, at most", GreaterThan(0)] = 5,
    teacher_noise: Annotated[float, "share of imitated numbers that are drawn at random"] = 0.3,
    cold_start_steps: ColdStartSteps = None,
    cold_start_batch: ColdStartBatch = None,
    cold_start_lr: ColdStartLr = None,
    steps: Steps = None,
    problems_per_step: PicturesPerStep = None,
    group_size: GroupSize = None,
    lr: Lr = None,
    limit: Limit = 300,
    pictures: Pictures = "test",
    device: Annotated[str, "auto, cpu or cuda"] = "auto",
    seed: int = 0,
) -> Stages:
    pace = choose_pace(
        model, TINY, LARGE, cold_start_steps=cold_start_steps, cold_start_batch=cold_start_batch,
        cold_start_lr=cold_start_lr, steps=steps, problems_per_step=problems_per_step, group_size=group_size, lr=lr,
    )  # fmt: skip
    task = CountAlike(most=most, seed=seed)
    return make_stages(task, teacher_noise, "accuracy", model, pace, SAMPLING, limit, pictures, device)
