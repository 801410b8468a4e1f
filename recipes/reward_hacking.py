"""Reward hacking: GRPO on a reward with a hole, with and without a KL term, and on the verifier's, from one start.

`ponder book reward-hacking` reads the samples of every run by the true verifier, by two judges that no training saw,
and against the start.
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
    Validation,
    find_base,
)
from _weak_rewards import WeakKind, WeaklyRewarded

from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Task
from ponder.reason.strategies import Samples
from ponder.train.objective import KL
from ponder.train.policy_gradient import GRPO
from ponder.train.reward_objectives import ImplicitReward, OutcomeReward

BETAS = (0.03, 0.1, 0.3)  # of the KL terms
RATE = 3.0  # times the base's learning rate
JUDGE_BETA = 0.2


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 256,
    weak: Annotated[WeakKind, "the reward with a hole"] = "equations",
    steps: Steps = 48, problems_per_step: Problems = 32, group_size: Count = 8, lr: Lr = None,
    judge_steps: Steps = None, problems: Problems = None, samples: Count = 8,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    from dataclasses import replace

    b = find_base(model, task, task_settings, template, max_tokens, limit)
    learning = replace(b, task=Validation(b.task))  # its test problems are the validation split
    stages, first = learning.cold_start_stages(seed, start)
    problems = problems or b.answer_budget // (2 * samples)
    stages += [
        Stage("outcomes", learning.collect(first, Samples(samples, b.sampling), problems, seed)),
        Stage("orm", b.train_reward_model("stage:outcomes", first, OutcomeReward(), seed, judge_steps)),
        Stage("implicit", b.train_reward_model("stage:outcomes", first, ImplicitReward(JUDGE_BETA), seed, judge_steps)),
    ]
    weakly = WeaklyRewarded(learning.task, weak)
    runs: dict[str, tuple[Task, KL | None]] = {"verified": (learning.task, None), "weak": (weakly, None)}
    runs |= {f"weak-kl-{beta:g}": (weakly, KL(beta)) for beta in BETAS}
    for name, (rewarded, kl) in runs.items():
        job = learning.rl_job(
            first, group_size, GRPO(kl=kl), seed, steps, lr or RATE * b.rl.lr, task=rewarded,
            problems_per_step=problems_per_step, minibatches=4, preflight=False,
        )  # fmt: skip
        stages.append(Stage(name, job))
    stages.append(Stage("test-start", b.evaluate(first, seed)))
    for name in runs:
        stages.append(Stage(f"validation-{name}", learning.evaluate(f"stage:{name}", seed)))
        stages.append(Stage(f"test-{name}", b.evaluate(f"stage:{name}", seed)))
    return Stages(tuple(stages))
