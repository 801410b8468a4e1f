"""STaR: sample, keep correct answers, fine-tune the base model on them, and again with the better model.

Each round samples with the newest model and trains from the *base* model (Zelikman et al. 2022). If no sample
of a problem is correct, a language model is given the answer and asked to explain it; its explanation is trained on
without the hint. The tiny model cannot read such hints.

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
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.pipelines.harvest import Harvest
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import STaR


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = LIMIT,
    rounds: Count = 2, problems: Problems = None, n: Count = 4,
    rationalise: Annotated[bool | None, "hints where nothing is right; None: of a language model"] = None,
    steps: Steps = None, lr: Lr = None, start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    problems = problems or b.answer_budget // (rounds * n)
    newest, way = first, STaR(n, b.sampling, rationalise=model != "tiny" if rationalise is None else rationalise)
    for k in range(1, rounds + 1):
        stages += [
            Stage(f"sample-{k}", b.collect(newest, way, problems, seed, first=(k - 1) * problems, guide="oracle")),
            Stage(f"harvest-{k}", Harvest((f"stage:sample-{k}",), "chains", max_per_problem=1, tokenizer=first)),
            Stage(f"tune-{k}", b.fine_tune(f"stage:harvest-{k}/data.jsonl", first, seed, steps, lr)),
            Stage(f"accuracy-{k}", b.evaluate(f"stage:tune-{k}", seed)),
        ]
        newest = f"stage:tune-{k}"
    return Stages(tuple(stages))
