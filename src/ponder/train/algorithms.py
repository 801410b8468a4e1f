"""Every algorithm under its name, for recipes and the command line."""

from __future__ import annotations

from typing import Any

from ponder.train.distill import Distill
from ponder.train.dpo import DPO
from ponder.train.gigpo import GiGPO
from ponder.train.imitation import SFT, RejectionSampling
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
from ponder.train.ppo import PPO, PPOMax

# The command line reads these tables from the source, without importing torch: keep them literal.
ONLINE: dict[str, Any] = {  # what only an RL job can run
    "reinforce": REINFORCE,
    "rloo": RLOO,
    "reinforce++": ReinforcePlusPlus,
    "grpo": GRPO,
    "dr-grpo": DrGRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "gigpo": GiGPO,
    "ppo": PPO,
    "ppo-max": PPOMax,
    "tree": TreeCredit,
    "rejection": RejectionSampling,
}
OFFLINE: dict[str, Any] = {"sft": SFT, "dpo": DPO, "distill": Distill}  # what a fine-tuning job can run
ON_POLICY: dict[str, Any] = {**ONLINE, "dpo": DPO, "distill": Distill}  # what an RL job can run
