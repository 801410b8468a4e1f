"""The same small model, the same problems, several ways to think: what does each buy, and for how many tokens?

No judge is trained: where a strategy needs a guide, it is how likely the model finds what it wrote. Afterwards
`ponder compare runs/ways_to_think/chain runs/ways_to_think/vote ...` puts them side by side with paired intervals.

The searches choose where steps end by what the model writes, which is lines: beam, DVTS and MCTS grow trees of several
steps. No figures are stated here. Runs made when the default was a blank line had trees one step deep, so that beam and
DVTS were best of n in them: do not compare those with new ones.
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
