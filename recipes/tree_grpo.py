"""Tree search inside GRPO: a group is a tree that branches at lines, and each line earns the mean of what is below it.

Against GRPO on independent samples with as many answers a problem, from the same start.
"""

from _tiny import DRAW, TASK, TEMPLATE, measure, start

from ponder.pipelines.rl import RL
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Branches, Ensemble
from ponder.train.objective import NO_KL
from ponder.train.optimiser import AdamW
from ponder.train.policy_gradient import GRPO, TreeCredit


def recipe(steps: int = 60, prompts: int = 32, lr: float = 1e-4, seed: int = 0) -> Stages:
    learn = {
        "model": "stage:sft", "template": TEMPLATE, "optimiser": AdamW(lr=lr, betas=(0.9, 0.95)), "steps": steps,
        "prompts": prompts, "save_every": steps, "seed": seed,
    }  # fmt: skip
    return Stages(
        (
            Stage("sft", start(seed)),
            Stage("sft-accuracy", measure("stage:sft", seed)),
            Stage("grpo", RL(TASK, strategy=Ensemble(8, DRAW), objective=GRPO(kl=NO_KL), **learn)),
            Stage("tree", RL(TASK, strategy=Branches((2, 2, 2), DRAW), objective=TreeCredit(kl=NO_KL), **learn)),
            Stage("grpo-accuracy", measure("stage:grpo", seed)),
            Stage("tree-accuracy", measure("stage:tree", seed)),
        )
    )
