"""Reward hacking: GRPO on a reward with a hole, with and without a KL term, and on the verifier's, from one start.

`ponder book reward-hacking` reads the samples of every run by the true verifier, by a judge that no training saw, and
against the start.
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
from _outcome_judges import judge_stages
from _weak_rewards import WeakKind, WeaklyRewarded

from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.train.objective import KL
from ponder.train.policy_gradient import GRPO

BETAS = (0.1, 1.0)  # of the KL terms
RATE = 1.0  # times the base's learning rate
WARMUP_STEPS = 16  # of the optimiser, four to a step of RL: Adam's first ones, at the full rate, do harm


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 192,
    weak: Annotated[WeakKind, "the reward with a hole"] = "brief",
    steps: Steps = 24, problems_per_step: Problems = 32, group_size: Count = 8, lr: Lr = None,
    judge_steps: Steps = None, problems: Problems = None, samples: Count = 8,
    judges: Annotated[str | None, "a run of outcome_judges from this start; None: the recipe trains its own"] = None,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    if judges is None:
        stages += judge_stages(b, first, seed, judge_steps, problems, samples)
    weakly = WeaklyRewarded(b.task, weak)
    runs: dict[str, tuple[Task, KL | None]] = {"verified": (b.task, None), "weak": (weakly, None)}
    runs |= {f"weak-kl-{beta:g}": (weakly, KL(beta)) for beta in BETAS}
    for name, (rewarded, kl) in runs.items():
        job = b.rl_job(
            first, group_size, GRPO(kl=kl), seed, steps, lr or RATE * b.rl.lr, task=rewarded,
            problems_per_step=problems_per_step, minibatches=4, preflight=False,
        )  # fmt: skip
        stages.append(Stage(name, replace(job, optimizer=replace(job.optimizer, warmup_steps=WARMUP_STEPS))))
    stages.append(Stage("test-start", b.evaluate(first, seed)))
    for name in runs:
        stages.append(Stage(f"test-{name}", b.evaluate(f"stage:{name}", seed)))
    return Stages(tuple(stages))
