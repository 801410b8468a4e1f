"""ponder trains, runs and measures reasoning language models.

Everything here is imported when it is first used, so `import ponder` stays light.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Milliseconds for which torch's allocator on ARM keeps freed memory (mimalloc, which reads this when torch is loaded);
# of large blocks it keeps unused memory ten times as long, 300 s, and an idle process keeps it until it works again.
# With its own 10 a training step's memory is given back while the step runs, and mapped page by page again.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "30000")

if TYPE_CHECKING:
    from ponder.errors import PonderError, UsageError
    from ponder.models.load import load_inference_policy as load
    from ponder.models.scratch_model import ScratchModel
    from ponder.nets.lora import LoRA
    from ponder.pipelines.ask import Answer, ask
    from ponder.pipelines.collect import Collect
    from ponder.pipelines.evaluate import Evaluate
    from ponder.pipelines.harvest import Harvest
    from ponder.pipelines.label import Label
    from ponder.pipelines.offline_rl import OfflineRL
    from ponder.pipelines.reward_model import TrainRewardModel
    from ponder.pipelines.rl import RL
    from ponder.pipelines.sft import FineTune
    from ponder.pipelines.solve import solve
    from ponder.pipelines.stages import Stage, Stages
    from ponder.protocols import NoProgress, Policy, Scorer, Strategy, Task
    from ponder.reason.budget import Budget
    from ponder.reason.strategies import (
        DVTS,
        MCTS,
        BeamSearch,
        BestOfN,
        BudgetForcing,
        Chain,
        MajorityVote,
        Samples,
        SelfRefine,
        TreeOfThoughts,
    )
    from ponder.runs import read_metrics, read_traces
    from ponder.tasks import Addition, Arithmetic, Countdown, CustomTask, EpisodeTask, GeneratedTask
    from ponder.tasks.environments.gym_environment import GymEnvironment
    from ponder.train.distill import Distill
    from ponder.train.dpo import DPO
    from ponder.train.imitation import SFT
    from ponder.train.objective import KL
    from ponder.train.optimizer import AdamW
    from ponder.train.policy_gradient import CISPO, DAPO, GRPO, GSPO, REINFORCE, RLOO, DrGRPO
    from ponder.train.ppo import PPO
    from ponder.train.rollout_correction import DecoupledPPO, IcePop, TruncatedIS
    from ponder.types import Action, Completion, Cost, Problem, Sampling, Score, Step, Trace, Turn, user_messages
    from ponder.verify import AssertTests, FinalNumber, MathAnswer
    from ponder.viewer.notebook import view

__version__ = "0.1.0"

# Where each public name lives. The imports above say the same to type checkers and editors; a test compares the two.
_MODULES = {
    "ponder.errors": ("PonderError", "UsageError"),
    "ponder.models.load": ("load_inference_policy as load",),
    "ponder.models.scratch_model": ("ScratchModel",),
    "ponder.nets.lora": ("LoRA",),
    "ponder.pipelines.ask": ("Answer", "ask"),
    "ponder.pipelines.collect": ("Collect",),
    "ponder.pipelines.evaluate": ("Evaluate",),
    "ponder.pipelines.harvest": ("Harvest",),
    "ponder.pipelines.label": ("Label",),
    "ponder.pipelines.offline_rl": ("OfflineRL",),
    "ponder.pipelines.reward_model": ("TrainRewardModel",),
    "ponder.pipelines.rl": ("RL",),
    "ponder.pipelines.sft": ("FineTune",),
    "ponder.pipelines.solve": ("solve",),
    "ponder.pipelines.stages": ("Stage", "Stages"),
    "ponder.protocols": ("NoProgress", "Policy", "Scorer", "Strategy", "Task"),
    "ponder.reason.budget": ("Budget",),
    "ponder.reason.strategies": (
        "DVTS",
        "MCTS",
        "BeamSearch",
        "BestOfN",
        "BudgetForcing",
        "Chain",
        "MajorityVote",
        "Samples",
        "SelfRefine",
        "TreeOfThoughts",
    ),
    "ponder.runs": ("read_metrics", "read_traces"),
    "ponder.tasks": ("Addition", "Arithmetic", "Countdown", "CustomTask", "EpisodeTask", "GeneratedTask"),
    "ponder.tasks.environments.gym_environment": ("GymEnvironment",),
    "ponder.train.distill": ("Distill",),
    "ponder.train.dpo": ("DPO",),
    "ponder.train.imitation": ("SFT",),
    "ponder.train.objective": ("KL",),
    "ponder.train.optimizer": ("AdamW",),
    "ponder.train.policy_gradient": ("CISPO", "DAPO", "GRPO", "GSPO", "REINFORCE", "RLOO", "DrGRPO"),
    "ponder.train.ppo": ("PPO",),
    "ponder.train.rollout_correction": ("DecoupledPPO", "IcePop", "TruncatedIS"),
    "ponder.types": (
        "Action",
        "Completion",
        "Cost",
        "Problem",
        "Sampling",
        "Score",
        "Step",
        "Trace",
        "Turn",
        "user_messages",
    ),
    "ponder.verify": ("AssertTests", "FinalNumber", "MathAnswer"),
    "ponder.viewer.notebook": ("view",),
}
_HOMES = {
    entry.rpartition(" ")[2]: (module, entry.partition(" ")[0])
    for module, entries in _MODULES.items()
    for entry in entries
}

__all__ = [
    "CISPO",
    "DAPO",
    "DPO",
    "DVTS",
    "GRPO",
    "GSPO",
    "KL",
    "MCTS",
    "PPO",
    "REINFORCE",
    "RL",
    "RLOO",
    "SFT",
    "Action",
    "AdamW",
    "Addition",
    "Answer",
    "Arithmetic",
    "AssertTests",
    "BeamSearch",
    "BestOfN",
    "Budget",
    "BudgetForcing",
    "Chain",
    "Collect",
    "Completion",
    "Cost",
    "Countdown",
    "CustomTask",
    "DecoupledPPO",
    "Distill",
    "DrGRPO",
    "EpisodeTask",
    "Evaluate",
    "FinalNumber",
    "FineTune",
    "GeneratedTask",
    "GymEnvironment",
    "Harvest",
    "IcePop",
    "Label",
    "LoRA",
    "MajorityVote",
    "MathAnswer",
    "NoProgress",
    "OfflineRL",
    "Policy",
    "PonderError",
    "Problem",
    "Samples",
    "Sampling",
    "Score",
    "Scorer",
    "ScratchModel",
    "SelfRefine",
    "Stage",
    "Stages",
    "Step",
    "Strategy",
    "Task",
    "Trace",
    "TrainRewardModel",
    "TreeOfThoughts",
    "TruncatedIS",
    "Turn",
    "UsageError",
    "__version__",
    "ask",
    "load",
    "read_metrics",
    "read_traces",
    "solve",
    "user_messages",
    "view",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _HOMES[name]
    value = getattr(import_module(module), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
