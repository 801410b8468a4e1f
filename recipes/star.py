"""STaR: sample, keep what is right, fine-tune the base model on it, and again with the better model.

Each round samples with the newest model and trains from the *base* model (Zelikman et al. 2022). Without hints here: a
model this small has never read one. With a language model, `STaR(rationalise=True)` gives the answer away.

Measured once (seed 0) on two Neoverse-N1 class cores, samples at temperature 1 on 123 held-out problems: 45.4 %
[42.0, 48.9] at first, 51.4 % [47.7, 55.2] after one round, 47.3 % [43.3, 51.2] after two. The settings are not tuned.
"""

from _tiny import DRAW, TASK, TEMPLATE, measure, start

from ponder.pipelines.collect import Collect
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import STaR
from ponder.train.optimiser import AdamW


def recipe(
    rounds: int = 2, problems: int = 1024, n: int = 4, steps: int = 100, lr: float = 5e-4, seed: int = 0
) -> Stages:
    stages = [Stage("base", start(seed)), Stage("base-accuracy", measure("stage:base", seed))]
    newest = "stage:base"
    for k in range(1, rounds + 1):
        sample = Collect(
            TASK, newest, strategy=STaR(n, DRAW, rationalise=False), guide="oracle", problems=problems,
            first=(k - 1) * problems, seed=seed,
        )  # fmt: skip
        tune = FineTune(
            f"stage:harvest-{k}/data.jsonl", "stage:base", TEMPLATE, optimiser=AdamW(lr=lr, decay_steps=steps),
            steps=steps, batch=64, save_every=steps, seed=seed,
        )  # fmt: skip
        stages += [
            Stage(f"sample-{k}", sample),
            Stage(f"harvest-{k}", Harvest((f"stage:sample-{k}",), "chains", each=1, model="stage:base")),
            Stage(f"tune-{k}", tune),
            Stage(f"accuracy-{k}", measure(f"stage:tune-{k}", seed)),
        ]
        newest = f"stage:tune-{k}"
    return Stages(tuple(stages))
