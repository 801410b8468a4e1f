"""What the noise of a policy gradient is measured on: a model, and many answers to a few training problems.

`ponder book gradient-noise` takes the gradient of every answer, and from these the noise of each estimator and group
size, without sampling again.
"""

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    MaxTokens,
    ModelName,
    Start,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 64,
    problems: Count = 8, n: Count = 64, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    stages += [Stage("sample", b.collect(first, Samples(n, b.sampling), problems, seed))]
    return Stages(tuple(stages))
