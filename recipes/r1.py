"""The R1 pipeline, stage by stage, on the smallest model: what each stage adds is measured after it.

cold-start SFT -> reasoning RL -> rejection sampling (verified reasoning, and plain answers as general data) -> SFT from
the base -> RL for all scenarios (the verifier for reasoning, a reward model for plain questions) -> distillation into a
smaller student (DeepSeek-AI 2025, arXiv 2501.12948). There is one language here, so no language reward.
"""

from dataclasses import replace

from _tiny import DRAW, TASK, TEMPLATE, measure, start

from ponder.pipelines.collect import Collect
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.reward import RewardModel
from ponder.pipelines.rewarded import Rewarded
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Ensemble
from ponder.tasks.mixed import Mixed
from ponder.train.objective import NO_KL
from ponder.train.optimiser import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.reward import ORM


def recipe(
    rl_steps: int = 60, sft_steps: int = 150, problems: int = 1024, prompts: int = 32, lr: float = 1e-4, seed: int = 0
) -> Stages:
    short = replace(TASK, terms=2)  # stands for questions that need no reasoning
    learn = {"optimiser": AdamW(lr=lr, betas=(0.9, 0.95)), "prompts": prompts, "save_every": rl_steps, "seed": seed}
    sample = {"strategy": Ensemble(4, DRAW), "problems": problems, "seed": seed}
    group = {"strategy": Ensemble(8, DRAW), "objective": GRPO(kl=NO_KL), "steps": rl_steps}

    def tuned(data: str, model: str) -> FineTune:
        return FineTune(
            data, model, TEMPLATE, optimiser=AdamW(lr=5e-4, decay_steps=sft_steps), steps=sft_steps, batch=64,
            save_every=sft_steps, seed=seed,
        )  # fmt: skip

    judge = RewardModel(
        ("stage:general",), "stage:sft", ORM(), TEMPLATE, optimiser=AdamW(lr=3e-4), steps=sft_steps, batch=64,
        save_every=sft_steps, seed=seed,
    )  # fmt: skip
    everything = Mixed((TASK, Rewarded(short, "reward:stage:judge", name="short")))
    stages = [
        Stage("cold-start", start(seed, steps=200)),
        Stage("reasoning-rl", RL(TASK, "stage:cold-start", TEMPLATE, **group, **learn)),
        Stage("reasoning", Collect(TASK, "stage:reasoning-rl", **sample)),
        Stage("general", Collect(short, "stage:reasoning-rl", **sample)),
        Stage("harvest", Harvest(("stage:reasoning", "stage:general"), "chains", each=2, model="stage:cold-start")),
        Stage("sft", tuned("stage:harvest/data.jsonl", "stage:cold-start")),
        Stage("judge", judge),
        Stage("all-rl", RL(everything, "stage:sft", TEMPLATE, preflight=False, **group, **learn)),
        Stage("answers", Collect(TASK, "stage:all-rl", **sample)),
        Stage("small", start(seed, steps=100, width=48, layers=2)),
        Stage("lessons", Harvest(("stage:answers",), "chains", each=2, model="stage:small")),
        Stage("student", tuned("stage:lessons/data.jsonl", "stage:small")),
    ]
    for name in ("cold-start", "reasoning-rl", "sft", "all-rl", "small", "student"):
        at = next(i for i, s in enumerate(stages) if s.name == name)
        stages.insert(at + 1, Stage(f"{name}-accuracy", measure(f"stage:{name}", seed)))
    return Stages(tuple(stages))
