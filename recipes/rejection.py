"""Rejection-sampling fine-tuning: sample often, keep a few different right answers to each problem, fine-tune.

What it gave, with three seeds, hardware and time: docs/results.md.
"""

from _bases import Count, Lr, On, Problems, Start, Steps, base

from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples


def recipe(
    base_model: On = "tiny", problems: Problems = None, n: Count = 8, max_per_problem: Count = 4, steps: Steps = None,
    lr: Lr = None, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = base(base_model)
    stages, first = b.begin(seed, start)
    problems = problems or b.answers // n
    stages += [
        Stage("sample", b.sample(first, Samples(n, b.draw), problems, seed)),
        Stage("harvest", Harvest(("stage:sample",), "chains", max_per_problem=max_per_problem, tokens_model=first)),
        Stage("tune", b.fine_tune("stage:harvest/data.jsonl", first, seed, steps, lr)),
        Stage("accuracy", b.measure("stage:tune", seed)),
    ]
    return Stages(tuple(stages))
