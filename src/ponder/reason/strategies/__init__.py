"""Ways to spend compute on a problem, by name."""

from typing import Any

from ponder.reason.strategies.beam import Beam, Lookahead
from ponder.reason.strategies.berry import Berry
from ponder.reason.strategies.best_of import BestOf
from ponder.reason.strategies.branches import Branches
from ponder.reason.strategies.chain import Chain
from ponder.reason.strategies.dvts import DVTS
from ponder.reason.strategies.ensemble import Ensemble
from ponder.reason.strategies.forcing import BudgetForcing
from ponder.reason.strategies.forest import Forest
from ponder.reason.strategies.fork import Fork
from ponder.reason.strategies.graph import GraphOfThoughts
from ponder.reason.strategies.length import ClassControl, Rejection, StepControl, TokenControl
from ponder.reason.strategies.mcts import MCTS
from ponder.reason.strategies.mutual import Mutual
from ponder.reason.strategies.particles import ParticleFilter
from ponder.reason.strategies.rebase import Rebase
from ponder.reason.strategies.refine import Refine
from ponder.reason.strategies.route import Route
from ponder.reason.strategies.star import STaR
from ponder.reason.strategies.thoughts import TreeOfThoughts
from ponder.reason.strategies.tools import ToolChain
from ponder.reason.strategies.vote import Vote

STRATEGIES: dict[str, Any] = {
    "chain": Chain,
    "ensemble": Ensemble,
    "branches": Branches,
    "vote": Vote,
    "best-of": BestOf,
    "beam": Beam,
    "lookahead": Lookahead,
    "dvts": DVTS,
    "rebase": Rebase,
    "particles": ParticleFilter,
    "forest": Forest,
    "mcts": MCTS,
    "mutual": Mutual,
    "berry": Berry,
    "route": Route,
    "star": STaR,
    "thoughts": TreeOfThoughts,
    "graph": GraphOfThoughts,
    "refine": Refine,
    "forcing": BudgetForcing,
    "token-control": TokenControl,
    "step-control": StepControl,
    "class-control": ClassControl,
    "rejection": Rejection,
    "fork": Fork,
    "tools": ToolChain,
}

__all__ = [
    "DVTS",
    "MCTS",
    "STRATEGIES",
    "Beam",
    "Berry",
    "BestOf",
    "Branches",
    "BudgetForcing",
    "Chain",
    "ClassControl",
    "Ensemble",
    "Forest",
    "Fork",
    "GraphOfThoughts",
    "Lookahead",
    "Mutual",
    "ParticleFilter",
    "Rebase",
    "Refine",
    "Rejection",
    "Route",
    "STaR",
    "StepControl",
    "TokenControl",
    "ToolChain",
    "TreeOfThoughts",
    "Vote",
]
