"""Seg-Zero in small (Liu et al. 2025): a vision-language model gives box and points, and a segmenter the mask.

The model of `visual_rft` first imitates boxes whose edges are off by some pixels, with points to match. Then it samples
answers for each picture. The reward is the overlap of the mask that a flood fill makes of box and points, and a fifth
of Seg-Zero's own reward (formats, box and points). Both models are measured by the overlap of masks on held-out
pictures that no setting was chosen on, and the second one also with grey pictures, on which it can only guess.
"""

from dataclasses import replace
from typing import Annotated

from _shapes import (
    ColdStartBatch,
    ColdStartLr,
    ColdStartSteps,
    FindMask,
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
from ponder.types import Sampling

SAMPLING = Sampling(max_tokens=112)  # of thinking, box, two points and their marks
TINY = Pace(
    cold_start_steps=450, cold_start_batch=32, cold_start_lr=2e-3, steps=150, problems_per_step=16, group_size=8,
    lr=7e-4, cold_start_decays=False,
)  # fmt: skip
LARGE = Pace(
    cold_start_steps=400, cold_start_batch=64, cold_start_lr=5e-4, steps=150, problems_per_step=16, group_size=16,
    lr=1e-4,
)  # fmt: skip


def recipe(
    model: Model = "tiny",
    teacher_noise: Annotated[int, "pixels by which the edges of imitated boxes are off, at most"] = 6,
    cold_start_steps: ColdStartSteps = None,
    cold_start_batch: ColdStartBatch = None,
    cold_start_lr: ColdStartLr = None,
    steps: Steps = None,
    problems_per_step: PicturesPerStep = None,
    group_size: GroupSize = None,
    lr: Lr = None,
    limit: Limit = 100,
    pictures: Pictures = "test",
    device: Annotated[str, "auto, cpu or cuda"] = "auto",
    seed: int = 0,
) -> Stages:
    pace = choose_pace(
        model, TINY, LARGE, cold_start_steps=cold_start_steps, cold_start_batch=cold_start_batch,
        cold_start_lr=cold_start_lr, steps=steps, problems_per_step=problems_per_step, group_size=group_size, lr=lr,
    )  # fmt: skip
    task = FindMask(seed=seed)
    reward = replace(task, shaped=True)
    return make_stages(
        task, teacher_noise, "overlap", model, pace, SAMPLING, limit, pictures, device, context=192, reward=reward
    )
