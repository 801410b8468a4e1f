"""RLHF: imitation, a reward model from pairs, then PPO on the reward model with a KL to the start.

The pairs are right against wrong answers, so the verifier says afterwards what the learned reward was worth.

What it gave, with three seeds, hardware and time: docs/results.md.
"""

from typing import Annotated

from _bases import Count, Lr, On, Problems, Start, Steps, base

from ponder.pipelines.rewarded import Rewarded
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Ensemble
from ponder.train.objective import KL
from ponder.train.optimiser import AdamW
from ponder.train.ppo import PPO, Critic
from ponder.train.reward import BradleyTerry


def recipe(
    base_model: On = "tiny", problems: Problems = None, answers_per_problem: Count = 8, reward_steps: Steps = None, rl_steps: Count = 32,
    prompts: Problems = None, group_size: Count = 4, kl: Annotated[float, "pull to the start"] = 0.3, lr: Lr = None,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = base(base_model)
    stages, sft = b.begin(seed, start)
    problems, prompts = problems or b.answers // (2 * answers_per_problem), prompts or b.answers // (2 * rl_steps * group_size)
    rewarded = Rewarded(b.task, "reward:stage:judge")
    rule = PPO(lam=1.0, kl=KL(kl, "k1", "reward"), critic=Critic(optimiser=AdamW(lr=b.judge.lr)))
    ppo = b.rl_job(sft, group_size, rule, seed, rl_steps, lr, task=rewarded, prompts=prompts, passes=2, preflight=False)
    stages += [
        Stage("sample", b.sample(sft, Ensemble(answers_per_problem, b.draw), problems, seed)),
        Stage("judge", b.judged("stage:sample", sft, BradleyTerry(), seed, reward_steps)),
        Stage("ppo", ppo),
        Stage("accuracy", b.measure("stage:ppo", seed)),
    ]
    return Stages(tuple(stages))
