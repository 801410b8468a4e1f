"""Two axes of compute: a model at several points of its training, and many samples of each held-out problem from each.

`ponder book two-axes` draws accuracy over training FLOPs and over the FLOPs of a vote, and the landscape of both.
A seed of the tiny model took three minutes on one Xeon core; docs/book/two-axes.md has the results of three.
"""

from typing import Annotated

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.train.optimizer import AdamW

CONSTANT_RATE = 0.75  # of the peak of a rate that decays: at the peak itself the loss jumps now and then


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 48,
    n: Count = 64, steps: Steps = 512, lr: Lr = None,
    halvings: Annotated[int, "the first checkpoint is at the steps halved so often", GreaterThan(-1)] = 4,
    points: Annotated[int, "checkpoints in each halving", GreaterThan(0)] = 2,
    seed: int = 0,
) -> Stages:  # fmt: skip
    from dataclasses import replace

    from ponder.models.scratch_model import ScratchModel

    b = find_base(model, task, task_settings, template, max_tokens, limit)
    steps = steps or 512
    first = max(1, steps >> halvings)
    spaced = {first * round(2 ** (k / points)) for k in range(halvings * points)}  # only these are saved
    measured_at = [*sorted(at for at in spaced if at < steps), steps]
    start = replace(b.model, seed=seed) if isinstance(b.model, ScratchModel) else b.model
    train = FineTune(
        b.task, start, b.template, optimizer=AdamW(lr=lr or CONSTANT_RATE * b.cold_start.lr, warmup_steps=first),
        steps=steps, batch_size=64, save_every=first, keep_checkpoints=steps // first + 1, seed=seed,
    )  # fmt: skip
    stages = [Stage("train", train)]
    for at in measured_at:
        checkpoint = f"stage:train/checkpoints/step-{at:06d}/model"
        stages.append(Stage(f"at-{at}", b.evaluate_with(Samples(n, b.sampling), checkpoint, seed, max_concurrency=16)))
    return Stages(tuple(stages))
