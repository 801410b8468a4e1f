"""PPO on the verifier's reward, with a critic that learns which tokens decide an answer.

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

from ponder.pipelines.stages import Stage, Stages
from ponder.train.objective import Critic
from ponder.train.optimizer import AdamW
from ponder.train.ppo import PPO


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    steps: Steps = None, problems_per_step: Problems = None, group_size: Count = 4,
    epochs_per_batch: int = 1, critic_warmup_steps: int = 2,
    lr: Lr = None, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    critic = Critic(optimizer=AdamW(lr=b.reward_model.lr), warmup_steps=critic_warmup_steps)
    ppo = b.rl_job(
        first,
        group_size,
        PPO(kl=None, lam=1.0, critic=critic),
        seed,
        steps,
        lr,
        problems_per_step=problems_per_step,
        epochs_per_batch=epochs_per_batch,
    )
    return Stages((*stages, Stage("ppo", ppo), Stage("accuracy", b.evaluate("stage:ppo", seed))))
