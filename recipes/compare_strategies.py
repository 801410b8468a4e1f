"""Strategies compared on one small model and the same problems: accuracy and tokens of each.

No reward model is trained: a strategy that needs a guide uses the likelihood of the model's own text. Afterwards
`ponder compare runs/compare_strategies/chain runs/compare_strategies/vote ...` compares them with paired intervals.

The searches cut steps at lines, which is what the model writes, so beam, DVTS and MCTS grow trees of several steps. No
figures are stated here. Runs made when the default was a blank line had trees one step deep, so that beam and DVTS were
best of n in them: do not compare those with new ones.
"""

from dataclasses import replace

from _bases import BaseModelName, Start, find_base

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import DVTS, MCTS, BeamSearch, BestOfN, Chain, MajorityVote


def recipe(
    base_model: BaseModelName = "tiny", n: int = 16, limit: int = 300, start: Start = None, seed: int = 0
) -> Stages:
    b = find_base(base_model)
    stages, model = b.cold_start_stages(seed, start)
    ways = {
        "chain": Chain(replace(b.sampling, temperature=0.0)),
        "vote": MajorityVote(n, sampling=b.sampling),
        "vote-by-likelihood": MajorityVote(n, weight="likelihood", sampling=b.sampling),
        "vote-decided": MajorityVote(n, early_stopping="decided", sampling=b.sampling),
        "best-by-likelihood": BestOfN(n, sampling=b.sampling),
        "beam": BeamSearch(n=n, beam_width=4, sampling=b.sampling),
        "dvts": DVTS(n=n, beam_width=4, sampling=b.sampling),
        "mcts": MCTS(simulations=n, width=4, sampling=b.sampling, parallel_simulations=4),
    }
    for name, way in ways.items():
        guide = "" if name.startswith(("chain", "vote")) else "likelihood"
        stages.append(Stage(name, Evaluate(b.task, model, strategy=way, guide=guide, limit=limit, seed=seed)))
    return Stages(tuple(stages))
