"""A larger model teaches a smaller one: by its right answers, and by its whole distribution over them.

The teacher learns longer by imitation. One student imitates the teacher's verified samples; another, from the same
start, is pulled towards the teacher's next-token distribution on the same texts.
"""

from _tiny import DRAW, TASK, TEMPLATE, measure, start

from ponder.pipelines.collect import Collect
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.sft import FineTune
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Ensemble
from ponder.train.imitation import SFT, Distill
from ponder.train.optimiser import AdamW


def recipe(problems: int = 2048, n: int = 2, steps: int = 200, lr: float = 5e-4, seed: int = 0) -> Stages:
    def student(objective: SFT | Distill) -> FineTune:
        return FineTune(
            "stage:harvest/data.jsonl", "stage:student", TEMPLATE, objective=objective,
            teacher="stage:teacher" if isinstance(objective, Distill) else None,
            optimiser=AdamW(lr=lr, decay_steps=steps), steps=steps, batch=64, save_every=steps, seed=seed,
        )  # fmt: skip

    return Stages(
        (
            Stage("teacher", start(seed, steps=900)),
            Stage("student", start(seed, steps=200, width=48, layers=2)),
            Stage("teacher-accuracy", measure("stage:teacher", seed)),
            Stage("student-accuracy", measure("stage:student", seed)),
            Stage("sample", Collect(TASK, "stage:teacher", strategy=Ensemble(n, DRAW), problems=problems, seed=seed)),
            Stage("harvest", Harvest(("stage:sample",), "chains", each=n, model="stage:student")),
            Stage("by-traces", student(SFT())),
            Stage("by-logits", student(Distill())),
            Stage("by-traces-accuracy", measure("stage:by-traces", seed)),
            Stage("by-logits-accuracy", measure("stage:by-logits", seed)),
        )
    )
