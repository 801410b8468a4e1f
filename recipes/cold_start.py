"""What the other recipes start from: a short imitation of worked answers, broken off early, and its accuracy.

What it gave, with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace

from _bases import Lr, On, Pace, Steps, base

from ponder.pipelines.stages import Stages


def recipe(base_model: On = "tiny", steps: Steps = None, lr: Lr = None, seed: int = 0) -> Stages:
    b = base(base_model)
    pace = Pace(steps or b.cold_start.steps, lr or b.cold_start.lr)
    return Stages(tuple(replace(b, cold=pace).begin(seed, None)[0]))
