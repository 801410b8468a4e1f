"""Ways to spend compute on a problem, by name."""

from typing import Any

from ponder.reason.strategies.beam import BeamSearch, LookaheadBeamSearch
from ponder.reason.strategies.berry import LlamaBerry
from ponder.reason.strategies.best_of import BestOfN
from ponder.reason.strategies.branches import SampleTree
from ponder.reason.strategies.chain import Chain
from ponder.reason.strategies.dvts import DVTS
from ponder.reason.strategies.ensemble import Samples
from ponder.reason.strategies.forcing import BudgetForcing
from ponder.reason.strategies.forest import Forest
from ponder.reason.strategies.fork import EntropyFork
from ponder.reason.strategies.graph import GraphOfThoughts
from ponder.reason.strategies.length import ClassControl, LengthRejection, StepControl, TokenControl
from ponder.reason.strategies.mcts import MCTS
from ponder.reason.strategies.mutual import RStarConsistency
from ponder.reason.strategies.particles import ParticleFilter
from ponder.reason.strategies.rebase import Rebase
from ponder.reason.strategies.refine import SelfRefine
from ponder.reason.strategies.route import Cascade
from ponder.reason.strategies.star import STaR
from ponder.reason.strategies.thoughts import TreeOfThoughts
from ponder.reason.strategies.tools import ToolUse
from ponder.reason.strategies.vote import MajorityVote

STRATEGIES: dict[str, Any] = {
    "chain": Chain,
    "ensemble": Samples,
    "branches": SampleTree,
    "vote": MajorityVote,
    "best-of": BestOfN,
    "beam": BeamSearch,
    "lookahead": LookaheadBeamSearch,
    "dvts": DVTS,
    "rebase": Rebase,
    "particles": ParticleFilter,
    "forest": Forest,
    "mcts": MCTS,
    "mutual": RStarConsistency,
    "berry": LlamaBerry,
    "route": Cascade,
    "star": STaR,
    "thoughts": TreeOfThoughts,
    "graph": GraphOfThoughts,
    "refine": SelfRefine,
    "forcing": BudgetForcing,
    "token-control": TokenControl,
    "step-control": StepControl,
    "class-control": ClassControl,
    "rejection": LengthRejection,
    "fork": EntropyFork,
    "tools": ToolUse,
}

__all__ = [
    "DVTS",
    "MCTS",
    "STRATEGIES",
    "BeamSearch",
    "LlamaBerry",
    "BestOfN",
    "SampleTree",
    "BudgetForcing",
    "Chain",
    "ClassControl",
    "Samples",
    "Forest",
    "EntropyFork",
    "GraphOfThoughts",
    "LookaheadBeamSearch",
    "RStarConsistency",
    "ParticleFilter",
    "Rebase",
    "SelfRefine",
    "LengthRejection",
    "Cascade",
    "STaR",
    "StepControl",
    "TokenControl",
    "ToolUse",
    "TreeOfThoughts",
    "MajorityVote",
]
