"""Distillation: a student learns from a better model, from its correct answers or from its distribution over them.

The teacher is fine-tuned on worked answers for longer, or given by `--teacher`. One student imitates the teacher's
verified samples; another, from the same start, learns the teacher's next-token distribution on the same texts, for
which both need one vocabulary. The tiny student is smaller than its teacher; SmolLM2's has the same size and less
training. On a given task the student is `--model` as it is.

Results with three seeds, hardware and time: docs/results.md.
"""

from typing import Annotated

from _bases import (
    LIMIT,
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.errors import UsageError
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import GreaterThan
from ponder.train.distill import Distill


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    teacher: Annotated[str | None, "the model to learn from; None: the model itself, fine-tuned for longer"] = None,
    teacher_steps_factor: Annotated[
        int | None, "how many times the student's steps the teacher trains; None: 3", GreaterThan(0)
    ] = None,
    by_logits: Annotated[bool, "leave out the student of the teacher's distribution: no common vocabulary"] = True,
    problems: Problems = None, n: Count = 4, steps: Steps = None, lr: Lr = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    problems = problems or b.answer_budget // n
    stages = []
    if teacher is not None and teacher_steps_factor is not None:
        raise UsageError("--teacher-steps-factor is for a teacher that is trained here: leave it out with --teacher")
    if teacher is None:
        b.require_gold("a teacher of its own needs worked answers, so give --teacher a better model")
        stages.append(Stage("teacher", b.cold_start_job(seed, steps=(teacher_steps_factor or 3) * b.cold_start.steps)))
    student = "stage:student" if b.has_cold_start else str(b.student)
    if b.has_cold_start:
        stages.append(Stage("student", b.cold_start_job(seed, small=True)))
    data, learned_from = "stage:harvest/data.jsonl", teacher or "stage:teacher"
    tokenizer = student if teacher is None else None  # another model's answers are read as text
    stages += [
        Stage("teacher-accuracy", b.evaluate(learned_from, seed)),
        Stage("student-accuracy", b.evaluate(student, seed)),
        Stage("sample", b.collect(learned_from, Samples(n, b.sampling), problems, seed)),
        Stage("harvest", Harvest(("stage:sample",), "chains", max_per_problem=n, tokenizer=tokenizer)),
        Stage("by-traces", b.fine_tune(data, student, seed, steps, lr)),
        Stage("by-traces-accuracy", b.evaluate("stage:by-traces", seed)),
    ]
    if by_logits:
        job = b.fine_tune(data, student, seed, steps, lr, algorithm=Distill(), teacher=learned_from)
        stages += [Stage("by-logits", job), Stage("by-logits-accuracy", b.evaluate("stage:by-logits", seed))]
    return Stages(tuple(stages))
