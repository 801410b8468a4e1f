"""Visual-RFT in small (Liu et al. 2025): a vision-language model learns to find shapes by GRPO on overlap.

A character-level transformer with a vision tower, 0.3 million weights from scratch, first imitates boxes whose edges
are off by some pixels, as quick annotations are. Then it samples boxes for each picture, and the reward is their IoU
with the true box: no threshold, no format reward, no KL. Both models are measured on held-out pictures, the second one
also with grey pictures in their place. `--model smollm2` puts a tower from scratch beside SmolLM2-135M, for a GPU.

The reported pictures are other held-out ones than those that settings were chosen on (`--pictures validation`).
Results: docs/pictures.md.
"""

from typing import Annotated

from _shapes import (
    ColdStartBatch,
    ColdStartLr,
    ColdStartSteps,
    FindBox,
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

SAMPLING = Sampling(max_tokens=24)  # of `\boxed{[12,34,56,78]}` and its end
TINY = Pace(
    cold_start_steps=600, cold_start_batch=32, cold_start_lr=2e-3, steps=300, problems_per_step=32, group_size=8,
    lr=1e-3,
)  # fmt: skip
LARGE = Pace(
    cold_start_steps=400, cold_start_batch=64, cold_start_lr=5e-4, steps=200, problems_per_step=32, group_size=16,
    lr=1e-4,
)  # fmt: skip


def recipe(
    model: Model = "tiny",
    shapes: Annotated[int, "in a picture, at most", GreaterThan(0)] = 1,
    teacher_noise: Annotated[int, "pixels by which the edges of imitated boxes are off, at most"] = 8,
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
    task = FindBox(shapes=shapes, seed=seed)
    return make_stages(task, teacher_noise, "overlap", model, pace, SAMPLING, limit, pictures, device)
