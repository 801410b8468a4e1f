"""Policy-gradient algorithms from one start on one task: as many samples, optimiser steps and the same learning rate.

`ponder book algorithms` draws held-out accuracy over tokens, and compares at equal tokens. With `--minibatches 1` every
sample is the newest policy's own. With more, all but a step's first minibatch are of a policy some updates old, so that
ratios and clips have something to do; REINFORCE and RLOO have no ratio.
"""

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

from ponder.pipelines.stages import Stage, Stages
from ponder.settings import GreaterThan
from ponder.train.objective import Critic, Objective
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import DAPO, GRPO, GSPO, REINFORCE, RLOO, DrGRPO
from ponder.train.ppo import PPO

RATE = 1.0  # times the base's learning rate
EVALUATIONS = 4  # of a run


def objectives(critic_lr: float) -> dict[str, Objective]:
    """By name, all without a KL term, so that they differ in credit, weights and clips alone."""
    critic = Critic(optimizer=AdamW(lr=critic_lr), warmup_steps=2)
    return {
        "reinforce-plain": REINFORCE(baseline="none"),
        "reinforce": REINFORCE(),
        "rloo": RLOO(kl=None),
        "grpo": GRPO(kl=None),
        "dr-grpo": DrGRPO(max_completion_tokens=40),
        "dapo": DAPO(overlong_buffer=0),
        "gspo": GSPO(),
        "ppo": PPO(kl=None, lam=1.0, critic=critic),
    }


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 192,
    steps: Steps = 32, problems_per_step: Problems = 32, group_size: Count = 8,
    minibatches: Annotated[int, "optimiser steps on each step's samples", GreaterThan(0)] = 4, lr: Lr = None,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    steps = steps or b.rl.steps
    every = max(1, steps // EVALUATIONS)
    stages.append(Stage("start-test", b.evaluate(first, seed)))
    for name, objective in objectives(b.reward_model.lr).items():
        job = b.rl_job(
            first, group_size, objective, seed, steps, lr or RATE * b.rl.lr,
            problems_per_step=problems_per_step, minibatches=minibatches, eval_every=every, eval_limit=limit,
            eval_samples=4, preflight=False,
        )  # fmt: skip
        stages.append(Stage(name, job))
    return Stages(tuple(stages))
