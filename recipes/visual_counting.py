"""Counting (R1-V in small): a vision-language model from scratch learns to count shapes by GRPO on right and wrong.

The model of `visual_rft`, 0.3 million weights, first imitates gold answers, stopped early. Then it samples numbers for
each picture, and the reward is 1 for the right one. Both models are measured on held-out pictures that no setting was
chosen on, and the second one also with grey pictures in their place: one to five shapes, so chance is 20 %.
"""

from dataclasses import replace
from typing import Annotated, Any

from _shapes import TEMPLATE, CountAlike, Model, Pictures, dtype_of, held_out, make_model

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

SAMPLING = Sampling(max_tokens=12)  # of `\boxed{3}` and its end
GREEDY = Samples(1, replace(SAMPLING, temperature=0.0))


def recipe(
    model: Model = "tiny",
    most: Annotated[Count, "shapes in a picture, at most"] = 5,
    cold_start_steps: Annotated[Count, "of imitation"] = 480,
    cold_start_lr: Annotated[Rate, "learning rate of imitation"] = 2e-3,
    cold_start_batch: Annotated[Count, "pictures in a step of imitation"] = 32,
    teacher_noise: Annotated[float, "share of imitated numbers that are drawn at random"] = 0.0,
    steps: Annotated[Count, "of GRPO"] = 400,
    problems_per_step: Annotated[Count, "pictures in a step of GRPO"] = 32,
    group_size: Annotated[Count, "numbers sampled for each"] = 8,
    lr: Annotated[Rate, "learning rate of GRPO"] = 5e-4,
    limit: Annotated[Count, "held-out pictures to measure on, at most"] = 300,
    pictures: Annotated[Pictures, "which held-out pictures: test, or validation to choose settings"] = "test",
    device: str = "auto",
    seed: int = 0,
) -> Stages:
    task = CountAlike(most=most, seed=seed)
    where: dict[str, Any] = {"device": device, "dtype": dtype_of(model)}
    start = FineTune(
        replace(task, teacher_noise=teacher_noise), make_model(model, seed), TEMPLATE,
        optimizer=AdamW(lr=cold_start_lr, warmup_steps=20), steps=cold_start_steps,
        batch_size=cold_start_batch, save_every=cold_start_steps, seed=seed, **where,
    )  # fmt: skip
    grpo = RL(
        task=task, model="stage:start", group_size=group_size, sampling=SAMPLING, algorithm=GRPO(kl=None),
        optimizer=AdamW(lr=lr, warmup_steps=3, decay_steps=steps), steps=steps, problems_per_step=problems_per_step,
        save_every=steps, seed=seed, **where,
    )  # fmt: skip
    blind = CountAlike(most=most, seed=seed, blind=True)
    return Stages(
        (
            Stage("start", start),
            Stage("start-accuracy", _measure(held_out(task, pictures), "stage:start", limit, where)),
            Stage("grpo", grpo),
            Stage("accuracy", _measure(held_out(task, pictures), "stage:grpo", limit, where)),
            Stage("blind-accuracy", _measure(held_out(blind, pictures), "stage:grpo", limit, where)),
            Stage("start-greedy", _measure(held_out(task, pictures), "stage:start", limit, where, GREEDY)),
            Stage("greedy", _measure(held_out(task, pictures), "stage:grpo", limit, where, GREEDY)),
        )
    )


def _measure(
    task: CountAlike, model: str, limit: int, where: dict[str, Any], strategy: Samples = Samples(4, SAMPLING)
) -> Evaluate:
    return Evaluate(task, model, strategy=strategy, limit=limit, **where)
