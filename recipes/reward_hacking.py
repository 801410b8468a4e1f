"""Reward hacking: GRPO on a reward with a hole, with and without a KL term, and on the verifier's, from one start.

`ponder book reward-hacking` reads the samples of every run by the true verifier, by a judge that no training saw, and
against the start.
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
from _weak_rewards import WeakKind, WeaklyRewarded

from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.strategies import Samples
from ponder.train.objective import KL
from ponder.train.policy_gradient import GRPO
from ponder.train.reward_objectives import ImplicitReward

BETAS = (0.1, 1.0)  # of the KL terms
RATE = 1.0  # times the base's learning rate
JUDGE_BETA = 0.2


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 192,
    weak: Annotated[WeakKind, "the reward with a hole"] = "brief",
    steps: Steps = 32, problems_per_step: Problems = 32, group_size: Count = 8, lr: Lr = None,
    judge_steps: Steps = None, problems: Problems = None, samples: Count = 8,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    problems = problems or b.answer_budget // (2 * samples)
    stages += [
        Stage("outcomes", b.collect(first, Samples(samples, b.sampling), problems, seed)),
        Stage("implicit", b.train_reward_model("stage:outcomes", first, ImplicitReward(JUDGE_BETA), seed, judge_steps)),
    ]
    weakly = WeaklyRewarded(b.task, weak)
    runs: dict[str, tuple[Task, KL | None]] = {"verified": (b.task, None), "weak": (weakly, None)}
    runs |= {f"weak-kl-{beta:g}": (weakly, KL(beta)) for beta in BETAS}
    for name, (rewarded, kl) in runs.items():
        job = b.rl_job(
            first, group_size, GRPO(kl=kl), seed, steps, lr or RATE * b.rl.lr, task=rewarded,
            problems_per_step=problems_per_step, minibatches=4, preflight=False,
        )  # fmt: skip
        stages.append(Stage(name, job))
    stages.append(Stage("test-start", b.evaluate(first, seed)))
    for name in runs:
        stages.append(Stage(f"test-{name}", b.evaluate(f"stage:{name}", seed)))
    return Stages(tuple(stages))
