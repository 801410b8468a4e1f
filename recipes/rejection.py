"""Rejection-sampling fine-tuning: sample many answers, keep a few distinct correct ones per problem, fine-tune.

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

from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    problems: Problems = None, n: Count = 8, max_per_problem: Count = 4,
    steps: Steps = None,
    lr: Lr = None, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    problems = problems or b.answer_budget // n
    stages += [
        Stage("sample", b.collect(first, Samples(n, b.sampling), problems, seed)),
        Stage("harvest", Harvest(("stage:sample",), "chains", max_per_problem=max_per_problem, tokenizer=first)),
        Stage("tune", b.fine_tune("stage:harvest/data.jsonl", first, seed, steps, lr)),
        Stage("accuracy", b.evaluate("stage:tune", seed)),
    ]
    return Stages(tuple(stages))
