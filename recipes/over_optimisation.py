"""Optimising against a judge: best of up to 1,024 samples by a scalar head and by an implicit reward model, and GRPO on
either as the reward, on the second also with a KL term. The verifier measures what it was worth.

`ponder book over-optimisation` draws judge and verifier over the KL from the start (Gao et al. 2023).
"""

from dataclasses import replace
from typing import Annotated

from _bases import (
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
from _outcome_judges import judge_folder, judge_stages

from ponder.pipelines.rewards.reward_model_task import RewardModelTask
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.train.objective import KL
from ponder.train.policy_gradient import GRPO

RATE = 1.0  # times the base's learning rate
WARMUP_STEPS = 16  # of the optimiser, four to a step of RL


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 192,
    n: Count = 1024, n_problems: Annotated[Count, "held-out problems with so many samples"] = 16,
    steps: Steps = 32, problems_per_step: Problems = 32, group_size: Count = 8, lr: Lr = None,
    kl: Annotated[float, "pull to the start, in the run that has one", GreaterThan(0)] = 0.1,
    judge_steps: Steps = None, problems: Problems = None, samples: Count = 8,
    judges: Annotated[str | None, "a run of outcome_judges from this start; None: the recipe trains its own"] = None,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    if judges is None:
        stages += judge_stages(b, first, seed, judge_steps, problems, samples)
    every = Samples(n, b.sampling)
    stages += [
        Stage("samples", replace(b, limit=n_problems).evaluate_with(every, first, seed, max_concurrency=4)),
        Stage("test-start", b.evaluate(first, seed)),
    ]
    for name, judge, term in (("rl-orm", "orm", None), ("rl-implicit", "implicit", None),
                              ("rl-implicit-kl", "implicit", KL(kl))):  # fmt: skip
        rewarded = RewardModelTask(b.task, f"reward:{judge_folder(judges, judge)}")
        job = b.rl_job(
            first, group_size, GRPO(kl=term), seed, steps, lr or RATE * b.rl.lr, task=rewarded,
            problems_per_step=problems_per_step, minibatches=4, preflight=False,
        )  # fmt: skip
        job = replace(job, optimizer=replace(job.optimizer, warmup_steps=WARMUP_STEPS))
        stages += [Stage(name, job), Stage(f"test-{name}", b.evaluate(f"stage:{name}", seed))]
    return Stages(tuple(stages))
