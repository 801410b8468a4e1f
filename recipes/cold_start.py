"""The start of the other recipes: a short fine-tuning on worked answers, stopped early, and its accuracy.

Results with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace

from _bases import BaseModelName, Lr, Steps, StepsAndRate, find_base

from ponder.pipelines.stages import Stages


def recipe(base_model: BaseModelName = "tiny", steps: Steps = None, lr: Lr = None, seed: int = 0) -> Stages:
    b = find_base(base_model)
    pace = StepsAndRate(steps or b.cold_start.steps, lr or b.cold_start.lr)
    return Stages(tuple(replace(b, cold_start=pace).cold_start_stages(seed, None)[0]))
