"""Distillation: a student learns from a better model, from its correct answers or from its distribution over them.

The teacher is fine-tuned for longer. One student imitates the teacher's verified samples; another, from the same start,
learns the teacher's next-token distribution on the same texts. The tiny student is smaller than its teacher; SmolLM2's
has the same size and less training.

Results with three seeds, hardware and time: docs/results.md.
"""

from _bases import BaseModelName, Count, Lr, Problems, Steps, find_base

from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.train.distill import Distill


def recipe(
    base_model: BaseModelName = "tiny", teacher_steps_factor: Count = 3, problems: Problems = None, n: Count = 4,
    steps: Steps = None, lr: Lr = None,
    seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(base_model)
    problems = problems or b.answer_budget // n
    data, student = "stage:harvest/data.jsonl", "stage:student"
    by_logits = b.fine_tune(data, student, seed, steps, lr, algorithm=Distill(), teacher="stage:teacher")
    return Stages(
        (
            Stage("teacher", b.cold_start_job(seed, steps=teacher_steps_factor * b.cold_start.steps)),
            Stage("student", b.cold_start_job(seed, small=True)),
            Stage("teacher-accuracy", b.evaluate("stage:teacher", seed)),
            Stage("student-accuracy", b.evaluate("stage:student", seed)),
            Stage("sample", b.collect("stage:teacher", Samples(n, b.sampling), problems, seed)),
            Stage("harvest", Harvest(("stage:sample",), "chains", max_per_problem=n, tokenizer="stage:student")),
            Stage("by-traces", b.fine_tune(data, student, seed, steps, lr)),
            Stage("by-traces-accuracy", b.evaluate("stage:by-traces", seed)),
            Stage("by-logits", by_logits),
            Stage("by-logits-accuracy", b.evaluate("stage:by-logits", seed)),
        )
    )
