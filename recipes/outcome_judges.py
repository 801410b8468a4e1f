"""An outcome reward model and an implicit one, from the verdicts on a model's own answers: what `reward_hacking` and
`over_optimisation` judge by.

Results with three seeds: docs/book/over-optimisation.md.
"""

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
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
from _outcome_judges import judge_stages

from ponder.pipelines.stages import Stages


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 192,
    judge_steps: Steps = None, problems: Problems = None, samples: Count = 8,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    return Stages((*stages, *judge_stages(b, first, seed, judge_steps, problems, samples)))
