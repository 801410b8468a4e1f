"""What the other recipes start from: a short imitation of worked answers, broken off early, and its accuracy.

What it gave, with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace

from _bases import Lr, On, Pace, Steps, base

from ponder.pipelines.stages import Stages


def recipe(on: On = "tiny", steps: Steps = None, lr: Lr = None, seed: int = 0) -> Stages:
    b = base(on)
    pace = Pace(steps or b.cold.steps, lr or b.cold.lr)
    return Stages(tuple(replace(b, cold=pace).begin(seed, None)[0]))
