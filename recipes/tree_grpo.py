"""Tree search inside GRPO: a group is a tree that branches at lines, and each line earns the mean of what is below it.

`recipes/grpo.py` is the same on independent samples, with as many answers to a problem, from the same start.

What it gave, with three seeds, hardware and time: docs/results.md.
"""

from _bases import Lr, On, Problems, Start, Steps, base

from ponder.pipelines.stages import Stage, Stages
from ponder.reason.operators.cut import CUTS
from ponder.reason.strategies import SampleTree
from ponder.train.objective import NO_KL
from ponder.train.policy_gradient import TreeCredit


def recipe(
    base_model: On = "tiny",
    steps: Steps = None,
    problems_per_step: Problems = None,
    lr: Lr = None,
    start: Start = None,
    seed: int = 0,
) -> Stages:
    b = base(base_model)
    stages, first = b.begin(seed, start)
    way = SampleTree((2, 2, 2), b.draw, CUTS["line"])
    tree = b.rl_job(first, 8, TreeCredit(kl=NO_KL), seed, steps, lr, problems_per_step=problems_per_step, strategy=way)
    return Stages((*stages, Stage("tree", tree), Stage("accuracy", b.measure("stage:tree", seed))))
