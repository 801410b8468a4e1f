"""Ways to spend compute on a problem, by name."""

from typing import Any

from ponder.reason.strategies.beam import BeamSearch, Lookahead
from ponder.reason.strategies.berry import LlamaBerry
from ponder.reason.strategies.best_of import BestOf
from ponder.reason.strategies.branches import SampleTree
from ponder.reason.strategies.chain import Chain
from ponder.reason.strategies.dvts import DVTS
from ponder.reason.strategies.ensemble import Ensemble
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
from ponder.reason.strategies.route import Route
from ponder.reason.strategies.star import STaR
from ponder.reason.strategies.thoughts import TreeOfThoughts
from ponder.reason.strategies.tools import ToolChain
from ponder.reason.strategies.vote import Vote

STRATEGIES: dict[str, Any] = {
    "chain": Chain,
    "ensemble": Ensemble,
    "branches": SampleTree,
    "vote": Vote,
    "best-of": BestOf,
    "beam": BeamSearch,
    "lookahead": Lookahead,
    "dvts": DVTS,
    "rebase": Rebase,
    "particles": ParticleFilter,
    "forest": Forest,
    "mcts": MCTS,
    "mutual": RStarConsistency,
    "berry": LlamaBerry,
    "route": Route,
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
    "tools": ToolChain,
}

__all__ = [
    "DVTS",
    "MCTS",
    "STRATEGIES",
    "BeamSearch",
    "LlamaBerry",
    "BestOf",
    "SampleTree",
    "BudgetForcing",
    "Chain",
    "ClassControl",
    "Ensemble",
    "Forest",
    "EntropyFork",
    "GraphOfThoughts",
    "Lookahead",
    "RStarConsistency",
    "ParticleFilter",
    "Rebase",
    "SelfRefine",
    "LengthRejection",
    "Route",
    "STaR",
    "StepControl",
    "TokenControl",
    "ToolChain",
    "TreeOfThoughts",
    "Vote",
]
