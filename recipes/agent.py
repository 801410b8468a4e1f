"""An agent: a model learns to act in an environment, by imitating gold play for a short time and then by GRPO.

`--task` is any task with an environment: mastermind, grid-walk, alphabet-sort, sql ... (ponder tasks lists them).
`--model tiny` is a transformer from scratch, for minutes on two CPU cores; a language model has its own chat template.

Results with three seeds, hardware and time: docs/environments.md.
"""

import string
from dataclasses import replace
from typing import Annotated

from _bases import LIMIT, NO_SETTINGS, Count, Limit, ModelName, TaskSettings

from ponder.cli.named_objects import build_task
from ponder.errors import UsageError
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan, Named
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

TINY = ScratchModel(string.printable, width=64, layers=2, heads=2, context=1024)


def recipe(
    model: ModelName = "tiny",
    task: Annotated[str, Named("ponder.tasks:TASKS"), "a task with an environment"] = "grid-walk",
    task_settings: TaskSettings = NO_SETTINGS,
    max_tokens: Annotated[int, "that the policy writes in an episode, at most", GreaterThan(0)] = 96,
    limit: Limit = LIMIT, cold_start_steps: Count = 60, cold_start_lr: float = 3e-3, steps: Count = 100,
    problems_per_step: Count = 16, group_size: Count = 8, lr: float = 3e-4, seed: int = 0,
) -> Stages:  # fmt: skip
    tiny = model == "tiny"
    world = build_task(task, dict(task_settings) or ({"level": "1"} if tiny else {}))
    if not hasattr(world.verifier, "open_environment"):
        raise UsageError(f"the task {world.name!r} has no environment: `ponder run grpo` trains on it")
    if tiny and hasattr(world, "show_rules") and "show_rules" not in task_settings:
        world = replace(world, show_rules=False)  # it learns them from gold play
    sampling = Sampling(max_tokens=max_tokens)
    first = FineTune(
        world, replace(TINY, seed=seed) if tiny else model, "qa" if tiny else None,
        optimizer=AdamW(lr=cold_start_lr, warmup_steps=cold_start_steps // 10), steps=cold_start_steps,
        save_every=cold_start_steps, seed=seed,
    )  # fmt: skip
    rl = RL(
        task=world, model="stage:cold_start", algorithm=GRPO(kl=None), optimizer=AdamW(lr=lr), steps=steps,
        group_size=group_size, problems_per_step=problems_per_step, sampling=sampling, seed=seed,
    )  # fmt: skip

    def measure(stage: str) -> Evaluate:
        return Evaluate(world, f"stage:{stage}", strategy=Samples(4, sampling), limit=limit, seed=seed)

    return Stages((
        Stage("cold_start", first),
        Stage("before", measure("cold_start")),
        Stage("rl", rl),
        Stage("after", measure("rl")),
    ))  # fmt: skip
