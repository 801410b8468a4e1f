"""RLHF: fine-tuning, a reward model from pairs, then PPO on the reward model with a KL term to the start.

The critic starts from the reward model (Ouyang et al. 2022). With `--judge implicit` the reward model is implicit,
trained on the same answers' verdicts and read by its log-probability per token; it has no head, so the critic starts
from the policy.

The pairs are correct and wrong answers, so the verifier measures afterwards how good the learned reward was.

Results with three seeds, hardware and time: docs/results.md.
"""

from typing import Annotated, Literal

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
from _outcome_judges import JUDGE_BETA

from ponder.pipelines.rewards.reward_model_task import RewardModelTask
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.train.objective import KL, Critic
from ponder.train.optimizer import AdamW
from ponder.train.ppo import PPO
from ponder.train.reward_objectives import BradleyTerry, ImplicitReward


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    problems: Problems = None, answers_per_problem: Count = 8,
    reward_steps: Steps = None, rl_steps: Count = 32,
    problems_per_step: Problems = None, group_size: Count = 4, kl: Annotated[float, "pull to the start"] = 0.3,
    lr: Lr = None,
    judge: Annotated[Literal["pairs", "implicit"], "a head from pairs, or an implicit reward model"] = "pairs",
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, sft = b.cold_start_stages(seed, start)
    problems, problems_per_step = (
        problems or b.answer_budget // (2 * answers_per_problem),
        problems_per_step or b.answer_budget // (2 * rl_steps * group_size),
    )
    implicit = judge == "implicit"
    rewarded = RewardModelTask(b.task, f"reward{'+likelihood' * implicit}:stage:reward-model")
    critic = Critic(None if implicit else "stage:reward-model", AdamW(lr=b.reward_model.lr))
    learned = ImplicitReward(JUDGE_BETA) if implicit else BradleyTerry()
    rule = PPO(lam=1.0, kl=KL(kl, "k1", "reward"), critic=critic)
    ppo = b.rl_job(
        sft,
        group_size,
        rule,
        seed,
        rl_steps,
        lr,
        task=rewarded,
        problems_per_step=problems_per_step,
        epochs_per_batch=2,
        preflight=False,
    )
    stages += [
        Stage("sample", b.collect(sft, Samples(answers_per_problem, b.sampling), problems, seed)),
        Stage("reward-model", b.train_reward_model("stage:sample", sft, learned, seed, reward_steps)),
        Stage("ppo", ppo),
        Stage("accuracy", b.evaluate("stage:ppo", seed)),
    ]
    return Stages(tuple(stages))
