"""Expert iteration with search: MCTS with the policy and a value model, both trained on what it found, and again.

The gold answer judges the ends of training searches (their traces say `oracle`); the value model is what guides the
search at test time, where there is none (Besta et al. 2025; Silver et al. 2018).
"""

from _tiny import DRAW, TASK, TEMPLATE, measure, start

from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.reward import RewardModel
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.operators.cut import CUTS
from ponder.reason.strategies import MCTS
from ponder.train.optimiser import AdamW
from ponder.train.reward import Value


def recipe(
    rounds: int = 2, problems: int = 256, simulations: int = 16, steps: int = 100, lr: float = 3e-4, seed: int = 0
) -> Stages:
    search = MCTS(simulations=simulations, width=4, sampling=DRAW, cut=CUTS["line"], rollouts=1, parallel=4)
    guided = MCTS(simulations=simulations, width=4, sampling=DRAW, cut=CUTS["line"], parallel=4)
    stages = [Stage("base", start(seed)), Stage("base-accuracy", measure("stage:base", seed))]
    newest = "stage:base"
    for k in range(1, rounds + 1):
        tune = FineTune(
            f"stage:chains-{k}/data.jsonl", newest, TEMPLATE, optimiser=AdamW(lr=lr, decay_steps=steps), steps=steps,
            batch=64, save_every=steps, seed=seed,
        )  # fmt: skip
        value = RewardModel(
            (f"stage:values-{k}/data.jsonl",), f"stage:tune-{k}", Value(), TEMPLATE, optimiser=AdamW(lr=lr),
            steps=steps, batch=64, save_every=steps, seed=seed,
        )  # fmt: skip
        stages += [
            Stage(
                f"search-{k}",
                Collect(TASK, newest, strategy=search, guide="oracle", problems=problems,
                        first=(k - 1) * problems, seed=seed),
            ),
            Stage(f"chains-{k}", Harvest((f"stage:search-{k}",), "chains", each=2, model=newest)),
            Stage(f"values-{k}", Harvest((f"stage:search-{k}",), "values", oracle=True)),
            Stage(f"tune-{k}", tune),
            Stage(f"value-{k}", value),
            Stage(f"accuracy-{k}", measure(f"stage:tune-{k}", seed)),
            Stage(
                f"search-accuracy-{k}",
                Evaluate(TASK, f"stage:tune-{k}", strategy=guided, guide=f"reward:stage:value-{k}", limit=100,
                         seed=seed),
            ),
        ]  # fmt: skip
        newest = f"stage:tune-{k}"
    return Stages(tuple(stages))
