"""A better model teaches another: by its right answers, and by its whole distribution over them.

The teacher learns longer by imitation. One student imitates the teacher's verified samples; another, from the same
start, is pulled towards the teacher's next-token distribution on the same texts. The tiny student is smaller than its
teacher; SmolLM2's is as large, and has only seen less.

What it gave, with three seeds, hardware and time: docs/results.md.
"""

from _bases import Count, Lr, On, Problems, Steps, base

from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.train.imitation import Distill


def recipe(
    base_model: On = "tiny", teacher_steps_factor: Count = 3, problems: Problems = None, n: Count = 4, steps: Steps = None, lr: Lr = None,
    seed: int = 0,
) -> Stages:  # fmt: skip
    b = base(base_model)
    problems = problems or b.answers // n
    lessons, pupil = "stage:harvest/data.jsonl", "stage:student"
    by_logits = b.fine_tune(lessons, pupil, seed, steps, lr, objective=Distill(), teacher="stage:teacher")
    return Stages(
        (
            Stage("teacher", b.start(seed, steps=teacher_steps_factor * b.cold_start.steps)),
            Stage("student", b.start(seed, small=True)),
            Stage("teacher-accuracy", b.measure("stage:teacher", seed)),
            Stage("student-accuracy", b.measure("stage:student", seed)),
            Stage("sample", b.sample("stage:teacher", Samples(n, b.draw), problems, seed)),
            Stage("harvest", Harvest(("stage:sample",), "chains", max_per_problem=n, tokens_model="stage:student")),
            Stage("by-traces", b.fine_tune(lessons, pupil, seed, steps, lr)),
            Stage("by-traces-accuracy", b.measure("stage:by-traces", seed)),
            Stage("by-logits", by_logits),
            Stage("by-logits-accuracy", b.measure("stage:by-logits", seed)),
        )
    )
