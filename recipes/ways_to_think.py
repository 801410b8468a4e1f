"""The same small model, the same problems, several ways to think: what does each buy, and for how many tokens?

No judge is trained: where a strategy needs a guide, it is how likely the model finds what it wrote. Afterwards
`ponder compare runs/ways_to_think/chain runs/ways_to_think/vote ...` puts them side by side with paired intervals.

Measured once (seed 0) on two Neoverse-N1 class cores, 123 held-out problems, a minute and a quarter in all: the greedy
chain 86.2 % [79.0, 91.2], the best of 16 by likelihood 86.2 %, votes, beams, DVTS and MCTS 73 to 76 % [65, 82]. At
temperature 1 this model is right less than half of the time, and what likelihood picks step by step does not make up
for it: none of these searches beats its own greedy answer here.
"""

from _tiny import DRAW, TASK, start

from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import DVTS, MCTS, Beam, BestOf, Chain, Vote
from ponder.types import Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=DRAW.max_tokens)


def recipe(n: int = 16, limit: int = 300, steps: int = 300, seed: int = 0) -> Stages:
    ways = {
        "chain": Chain(GREEDY),
        "vote": Vote(n, sampling=DRAW),
        "vote-by-likelihood": Vote(n, weight="likelihood", sampling=DRAW),
        "vote-settled": Vote(n, stop="settled", sampling=DRAW),
        "best-by-likelihood": BestOf(n, sampling=DRAW),
        "beam": Beam(n=n, m=4, sampling=DRAW),
        "dvts": DVTS(n=n, m=4, sampling=DRAW),
        "mcts": MCTS(simulations=n, width=4, sampling=DRAW, parallel=4),
    }
    stages = [Stage("model", start(seed, steps))]
    for name, way in ways.items():
        guide = "" if name.startswith(("chain", "vote")) else "likelihood"
        stages.append(Stage(name, Evaluate(TASK, "stage:model", strategy=way, guide=guide, limit=limit, seed=seed)))
    return Stages(tuple(stages))
