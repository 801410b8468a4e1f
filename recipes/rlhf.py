"""RLHF: imitation, a reward model from pairs, then PPO on the reward model with a KL to the start.

The pairs are right against wrong answers, so the verifier says afterwards what the learned reward was worth.
"""

from _tiny import DRAW, TASK, TEMPLATE, measure, start

from ponder.pipelines.collect import Collect
from ponder.pipelines.reward import RewardModel
from ponder.pipelines.rewarded import Rewarded
from ponder.pipelines.rl import RL
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Ensemble
from ponder.train.optimiser import AdamW
from ponder.train.ppo import PPO
from ponder.train.reward import BradleyTerry


def recipe(
    problems: int = 1024,
    n: int = 4,
    reward_steps: int = 150,
    rl_steps: int = 40,
    prompts: int = 32,
    lr: float = 5e-5,
    seed: int = 0,
) -> Stages:
    judge = RewardModel(
        ("stage:sample",), "stage:sft", BradleyTerry(), TEMPLATE, optimiser=AdamW(lr=3e-4), steps=reward_steps,
        batch=64, save_every=reward_steps, seed=seed,
    )  # fmt: skip
    ppo = RL(
        Rewarded(TASK, "reward:stage:judge"), "stage:sft", TEMPLATE, strategy=Ensemble(n, DRAW), objective=PPO(),
        optimiser=AdamW(lr=lr, betas=(0.9, 0.95)), steps=rl_steps, prompts=prompts, preflight=False,
        save_every=rl_steps, seed=seed,
    )  # fmt: skip
    return Stages(
        (
            Stage("sft", start(seed)),
            Stage("sft-accuracy", measure("stage:sft", seed)),
            Stage("sample", Collect(TASK, "stage:sft", strategy=Ensemble(n, DRAW), problems=problems, seed=seed)),
            Stage("judge", judge),
            Stage("ppo", ppo),
            Stage("ppo-accuracy", measure("stage:ppo", seed)),
        )
    )
