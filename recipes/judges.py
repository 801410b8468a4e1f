"""Judges of answers compared: who chooses best among N answers to one problem?

All learn from the same sampled answers and their verdicts: an outcome reward model (a head), implicit reward models of
several beta (no head: the log-ratio to the start), and the model fine-tuned on the right answers alone, whose
log-probability is the score. A tenth of the training problems is kept for choosing settings (beta, and how an implicit
model is read), and nothing learns from it. `ponder book judges` runs this with three seeds, scores the samples of both
splits with every judge, and draws the curves.
"""

from typing import Annotated

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    Lr,
    MaxTokens,
    ModelName,
    Problems,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    Validation,
    find_base,
)

from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.train.reward_objectives import ImplicitReward, OutcomeReward


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 128,
    problems: Problems = None, samples: Count = 8, n: Count = 64,
    steps: Steps = None, lr: Lr = None, implicit_lr: Lr = None,
    betas: Annotated[tuple[float, ...], "of implicit reward models"] = (0.05, 0.2, 1.0),
    batch_size: Annotated[Count, "problems whose answers are in a step of a reward model"] = 32,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    from dataclasses import replace

    b = find_base(model, task, task_settings, template, max_tokens, limit)
    learning = replace(b, task=Validation(b.task))  # its test problems are the validation split
    stages, first = learning.cold_start_stages(seed, start)
    problems = problems or b.answer_budget // (2 * samples)
    every, batch = Samples(n, b.sampling), {"batch_size": batch_size}
    stages += [
        Stage("outcomes", learning.collect(first, Samples(samples, b.sampling), problems, seed)),
        Stage("right", Harvest(("stage:outcomes",), "chains", max_per_problem=samples, tokenizer=first)),
        Stage("tuned", learning.fine_tune("stage:right/data.jsonl", first, seed, steps, None)),
        Stage("orm", b.train_reward_model("stage:outcomes", first, OutcomeReward(), seed, steps, lr, **batch)),
        *(
            Stage(
                f"implicit-{beta:g}",
                b.train_reward_model(
                    "stage:outcomes", first, ImplicitReward(beta), seed, steps, implicit_lr or lr, **batch
                ),
            )
            for beta in betas
        ),
        Stage("validation", learning.evaluate_with(every, first, seed, max_concurrency=32)),
        Stage("test", b.evaluate_with(every, first, seed, max_concurrency=32)),
    ]
    return Stages(tuple(stages))
