"""Every algorithm under its name, for recipes and the command line."""

from __future__ import annotations

from ponder.train.imitation import DPO, SFT, Distill, RejectionSampling
from ponder.train.policy_gradient import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    REINFORCE,
    RLOO,
    DrGRPO,
    ReinforcePlusPlus,
    TreeCredit,
)
from ponder.train.ppo import PPO

ONLINE = {
    "reinforce": REINFORCE,
    "rloo": RLOO,
    "reinforce++": ReinforcePlusPlus,
    "grpo": GRPO,
    "dr-grpo": DrGRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "ppo": PPO,
    "tree": TreeCredit,
    "rejection": RejectionSampling,
}
OFFLINE = {"sft": SFT, "dpo": DPO, "distill": Distill}
ON_POLICY = {**ONLINE, "dpo": DPO, "distill": Distill}  # pairs of, or a teacher's view on, what the policy samples
