"""Every algorithm under its name, for recipes and the command line."""

from __future__ import annotations

from typing import Any

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

ALGORITHMS: dict[str, Any] = {
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
    "sft": SFT,
    "dpo": DPO,
    "distill": Distill,
}
ON_POLICY = {name: kind for name, kind in ALGORITHMS.items() if kind.learns_from_samples}  # what an RL job can run
OFFLINE = {name: kind for name, kind in ALGORITHMS.items() if kind.learns_from_given}  # what a fine-tuning job can run
ONLINE = {name: kind for name, kind in ON_POLICY.items() if name not in OFFLINE}  # what only an RL job can run
