"""Visual-RFT in small (Liu et al. 2025): a vision-language model from scratch learns to find shapes by GRPO on overlap.

A character-level transformer with a vision tower, 0.3 million weights, first imitates gold boxes, stopped early. Then
it samples boxes for each picture, and the reward is their IoU with the gold box: no threshold, no format reward, no
KL. Both models are measured on held-out pictures, and the second one also with grey pictures in their place.

The reported pictures are other held-out ones than those that settings were chosen on (`--pictures validation`).
Results: docs/pictures.md.
"""

from dataclasses import replace
from typing import Annotated, Any

from _shapes import TEMPLATE, FindBox, Model, Pictures, dtype_of, held_out, make_model

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

Count = Annotated[int, GreaterThan(0)]
Rate = Annotated[float, GreaterThan(0)]

SAMPLING = Sampling(max_tokens=24)  # of `\boxed{[12,34,56,78]}` and its end
GREEDY = Samples(1, replace(SAMPLING, temperature=0.0))


def recipe(
    model: Model = "tiny",
    shapes: Annotated[Count, "in a picture, at most"] = 1,
    cold_start_steps: Annotated[Count, "of imitation"] = 450,
    cold_start_lr: Annotated[Rate, "learning rate of imitation"] = 2e-3,
    cold_start_batch: Annotated[Count, "pictures in a step of imitation"] = 32,
    teacher_noise: Annotated[int, "pixels by which the edges of imitated boxes are off, at most"] = 0,
    steps: Annotated[Count, "of GRPO"] = 400,
    problems_per_step: Annotated[Count, "pictures in a step of GRPO"] = 32,
    group_size: Annotated[Count, "boxes sampled for each"] = 8,
    lr: Annotated[Rate, "learning rate of GRPO"] = 7e-4,
    limit: Annotated[Count, "held-out pictures to measure on, at most"] = 300,
    pictures: Annotated[Pictures, "which held-out pictures: test, or validation to choose settings"] = "test",
    device: str = "auto",
    seed: int = 0,
) -> Stages:
    task = FindBox(shapes=shapes, seed=seed)
    where: dict[str, Any] = {"device": device, "dtype": dtype_of(model)}
    start = FineTune(
        replace(task, teacher_noise=teacher_noise), make_model(model, seed), TEMPLATE,
        optimizer=AdamW(lr=cold_start_lr, warmup_steps=20, decay_steps=cold_start_steps), steps=cold_start_steps,
        batch_size=cold_start_batch, save_every=cold_start_steps, seed=seed, **where,
    )  # fmt: skip
    grpo = RL(
        task=task, model="stage:start", group_size=group_size, sampling=SAMPLING, algorithm=GRPO(kl=None),
        optimizer=AdamW(lr=lr, warmup_steps=3, decay_steps=steps), steps=steps, problems_per_step=problems_per_step,
        save_every=steps, seed=seed, **where,
    )  # fmt: skip
    blind = FindBox(shapes=shapes, seed=seed, blind=True)
    return Stages(
        (
            Stage("start", start),
            Stage("start-overlap", _measure(held_out(task, pictures), "stage:start", limit, where)),
            Stage("grpo", grpo),
            Stage("overlap", _measure(held_out(task, pictures), "stage:grpo", limit, where)),
            Stage("blind-overlap", _measure(held_out(blind, pictures), "stage:grpo", limit, where)),
            Stage("start-greedy", _measure(held_out(task, pictures), "stage:start", limit, where, GREEDY)),
            Stage("greedy", _measure(held_out(task, pictures), "stage:grpo", limit, where, GREEDY)),
        )
    )


def _measure(
    task: FindBox, model: str, limit: int, where: dict[str, Any], strategy: Samples = Samples(4, SAMPLING)
) -> Evaluate:
    return Evaluate(task, model, strategy=strategy, limit=limit, **where)
