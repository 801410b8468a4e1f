"""Strategies: how to spend test-time compute on a problem. `STRATEGIES` has them by their command-line names."""

from typing import Any

from ponder.reason.strategies.beam_search import BeamSearch, LookaheadBeamSearch
from ponder.reason.strategies.best_of_n import BestOfN
from ponder.reason.strategies.budget_forcing import BudgetForcing
from ponder.reason.strategies.cascade import Cascade
from ponder.reason.strategies.chain import Chain
from ponder.reason.strategies.dvts import DVTS
from ponder.reason.strategies.entropy_fork import EntropyFork
from ponder.reason.strategies.forest import Forest
from ponder.reason.strategies.graph_of_thoughts import GraphOfThoughts
from ponder.reason.strategies.length_control import ClassControl, LengthRejection, StepControl, TokenControl
from ponder.reason.strategies.llama_berry import LlamaBerry
from ponder.reason.strategies.majority_vote import MajorityVote
from ponder.reason.strategies.mcts import MCTS
from ponder.reason.strategies.particle_filter import ParticleFilter
from ponder.reason.strategies.rebase import Rebase
from ponder.reason.strategies.rstar_consistency import RStarConsistency
from ponder.reason.strategies.sample_tree import SampleTree
from ponder.reason.strategies.samples import Samples
from ponder.reason.strategies.self_refine import SelfRefine
from ponder.reason.strategies.star import STaR
from ponder.reason.strategies.tool_use import ToolUse
from ponder.reason.strategies.tree_of_thoughts import TreeOfThoughts

STRATEGIES: dict[str, Any] = {
    "chain": Chain,
    "samples": Samples,
    "sample-tree": SampleTree,
    "majority-vote": MajorityVote,
    "best-of-n": BestOfN,
    "beam-search": BeamSearch,
    "lookahead": LookaheadBeamSearch,
    "dvts": DVTS,
    "rebase": Rebase,
    "particle-filter": ParticleFilter,
    "forest": Forest,
    "mcts": MCTS,
    "rstar-consistency": RStarConsistency,
    "llama-berry": LlamaBerry,
    "cascade": Cascade,
    "star": STaR,
    "tree-of-thoughts": TreeOfThoughts,
    "graph-of-thoughts": GraphOfThoughts,
    "self-refine": SelfRefine,
    "budget-forcing": BudgetForcing,
    "token-control": TokenControl,
    "step-control": StepControl,
    "class-control": ClassControl,
    "length-rejection": LengthRejection,
    "entropy-fork": EntropyFork,
    "tool-use": ToolUse,
}

__all__ = [
    "DVTS",
    "MCTS",
    "STRATEGIES",
    "BeamSearch",
    "BestOfN",
    "BudgetForcing",
    "Cascade",
    "Chain",
    "ClassControl",
    "EntropyFork",
    "Forest",
    "GraphOfThoughts",
    "LengthRejection",
    "LlamaBerry",
    "LookaheadBeamSearch",
    "MajorityVote",
    "ParticleFilter",
    "RStarConsistency",
    "Rebase",
    "STaR",
    "SampleTree",
    "Samples",
    "SelfRefine",
    "StepControl",
    "TokenControl",
    "ToolUse",
    "TreeOfThoughts",
]
