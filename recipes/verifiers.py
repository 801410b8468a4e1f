"""Which judge picks best: majority, an outcome model, a process model or the oracle, of N answers.

Both models are trained on the same samples of training problems: the outcome model on whether the answer is right, the
process model on how often samples that begin with a step's prefix end right (Math-Shepherd's labels).
"""

from _tiny import DRAW, TASK, TEMPLATE, measure, start

from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.label import Label
from ponder.pipelines.reward import RewardModel
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import BestOf, Ensemble
from ponder.train.optimiser import AdamW
from ponder.train.reward import ORM, PRM


def recipe(
    problems: int = 512, samples: int = 4, n: int = 16, steps: int = 150, lr: float = 3e-4, seed: int = 0
) -> Stages:
    learn = {"optimiser": AdamW(lr=lr), "steps": steps, "batch": 64, "save_every": steps, "seed": seed}
    best = {"task": TASK, "model": "stage:base", "seed": seed, "limit": 100}
    return Stages(
        (
            Stage("base", start(seed)),
            Stage("base-accuracy", measure("stage:base", seed, n)),
            Stage(
                "sample", Collect(TASK, "stage:base", strategy=Ensemble(samples, DRAW), problems=problems, seed=seed)
            ),
            Stage("label", Label(TASK, "stage:base", data=("stage:sample",), limit=problems, seed=seed)),
            Stage("orm", RewardModel(("stage:sample",), "stage:base", ORM(), TEMPLATE, **learn)),
            Stage("prm", RewardModel(("stage:label",), "stage:base", PRM(), TEMPLATE, separator="\n", **learn)),
            Stage("best-by-orm", Evaluate(strategy=BestOf(n, sampling=DRAW), guide="reward:stage:orm", **best)),
            Stage("best-by-prm", Evaluate(strategy=BestOf(n, sampling=DRAW), guide="reward:stage:prm", **best)),
            Stage("best-by-oracle", Evaluate(strategy=BestOf(n, sampling=DRAW), guide="oracle", **best)),
        )
    )
