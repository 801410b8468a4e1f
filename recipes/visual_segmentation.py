"""Seg-Zero in small (Liu et al. 2025): a vision-language model from scratch gives box and points, a segmenter the mask.

The model of `visual_rft`, 0.3 million weights, first imitates gold answers, stopped early. Then it samples answers for
each picture. The reward is the overlap of the mask that a flood fill makes of box and points, and a fifth of Seg-Zero's
own reward (formats, box and points). Both models are measured by the overlap of masks on held-out pictures that no
setting was chosen on, and the second one also with grey pictures, on which it can only guess.
"""

from dataclasses import replace
from typing import Annotated, Any

from _shapes import TEMPLATE, FindMask, Model, Pictures, dtype_of, held_out, make_model

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

SAMPLING = Sampling(max_tokens=112)  # of thinking, box, two points and their marks
GREEDY = Samples(1, replace(SAMPLING, temperature=0.0))


def recipe(
    model: Model = "tiny",
    cold_start_steps: Annotated[Count, "of imitation"] = 350,
    cold_start_lr: Annotated[Rate, "learning rate of imitation"] = 2e-3,
    cold_start_batch: Annotated[Count, "pictures in a step of imitation"] = 32,
    teacher_noise: Annotated[int, "pixels by which the edges of imitated boxes are off, at most"] = 0,
    steps: Annotated[Count, "of GRPO"] = 150,
    problems_per_step: Annotated[Count, "pictures in a step of GRPO"] = 16,
    group_size: Annotated[Count, "answers sampled for each"] = 8,
    lr: Annotated[Rate, "learning rate of GRPO"] = 5e-4,
    limit: Annotated[Count, "held-out pictures to measure on, at most"] = 100,
    pictures: Annotated[Pictures, "which held-out pictures: test, or validation to choose settings"] = "test",
    device: str = "auto",
    seed: int = 0,
) -> Stages:
    task = FindMask(seed=seed)
    where: dict[str, Any] = {"device": device, "dtype": dtype_of(model)}
    start = FineTune(
        replace(task, teacher_noise=teacher_noise), make_model(model, seed, context=192), TEMPLATE,
        optimizer=AdamW(lr=cold_start_lr, warmup_steps=20), steps=cold_start_steps, batch_size=cold_start_batch,
        save_every=cold_start_steps, seed=seed, **where,
    )  # fmt: skip
    grpo = RL(
        task=FindMask(seed=seed, shaped=True), model="stage:start", group_size=group_size, sampling=SAMPLING,
        algorithm=GRPO(kl=None), optimizer=AdamW(lr=lr, warmup_steps=3, decay_steps=steps), steps=steps,
        problems_per_step=problems_per_step, save_every=steps, seed=seed, **where,
    )  # fmt: skip
    blind = FindMask(seed=seed, blind=True)
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
    task: FindMask, model: str, limit: int, where: dict[str, Any], strategy: Samples = Samples(4, SAMPLING)
) -> Evaluate:
    return Evaluate(task, model, strategy=strategy, limit=limit, **where)
