"""GRPO: groups of samples, each rewarded for a correct answer relative to the mean of its group; no KL.

Results with three seeds, hardware and time: docs/results.md.
"""

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.pipelines.stages import Stage, Stages
from ponder.train.policy_gradient import GRPO


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    steps: Steps = None, problems_per_step: Problems = None, group_size: Count = 8,
    lr: Lr = None, start: Start = None,
    seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    grpo = b.rl_job(first, group_size, GRPO(kl=None), seed, steps, lr, problems_per_step=problems_per_step)
    return Stages((*stages, Stage("grpo", grpo), Stage("accuracy", b.evaluate("stage:grpo", seed))))
