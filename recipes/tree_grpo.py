"""GRPO with trees: a group is a tree that branches at steps, and the value of a step is the mean reward below it.

`recipes/grpo.py` is the same with independent samples, as many answers per problem, and the same start.

Results with three seeds, hardware and time: docs/results.md.
"""

from _bases import (
    LIMIT,
    NO_SETTINGS,
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
from ponder.reason.strategies import SampleTree
from ponder.train.policy_gradient import TreeCredit


def recipe(
    model: ModelName = "tiny",
    task: TaskName = None,
    task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None,
    max_tokens: MaxTokens = None,
    limit: Limit = LIMIT,
    steps: Steps = None,
    problems_per_step: Problems = None,
    lr: Lr = None,
    start: Start = None,
    seed: int = 0,
) -> Stages:
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    way = SampleTree((2, 2, 2), b.sampling, b.cut)
    tree = b.rl_job(first, 8, TreeCredit(kl=None), seed, steps, lr, problems_per_step=problems_per_step, strategy=way)
    return Stages((*stages, Stage("tree", tree), Stage("accuracy", b.evaluate("stage:tree", seed))))
