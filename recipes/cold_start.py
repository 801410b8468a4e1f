"""The start of the other recipes: a short fine-tuning on worked answers, stopped early, and its accuracy.

With `--task` it imitates the gold answers of that task.

Results with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Steps,
    StepsAndRate,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.pipelines.stages import Stages


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    steps: Steps = None, lr: Lr = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    b.require_gold("a cold start needs worked answers")
    pace = StepsAndRate(steps or b.cold_start.steps, lr or b.cold_start.lr)
    return Stages(tuple(replace(b, cold_start=pace, has_cold_start=True).cold_start_stages(seed, None)[0]))
