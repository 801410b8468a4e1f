"""The same problems answered at several temperatures, for judges that learned from answers at temperature 1.

Best of N by a judge may fall as N grows. Samples at a lower temperature repeat more, and hold fewer different wrong
texts: `ponder book falling` lets the same judges choose among both, beside a score that knows nothing. Without
`--judges` the recipe samples answers and trains an outcome and an implicit reward model on their verdicts. Results:
docs/book/falling.md.
"""

from dataclasses import replace
from typing import Annotated

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
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
from _outcome_judges import judge_stages

from ponder.errors import UsageError
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.settings import When

OWN_JUDGES = When("judges", None)


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 128,
    judges: Annotated[str | None, "a run that has trained both judges; None: this one does"] = None,
    problems: Annotated[Problems, OWN_JUDGES] = None, samples: Annotated[Count, OWN_JUDGES] = 8,
    judge_steps: Annotated[Steps, OWN_JUDGES] = None,
    temperatures: Annotated[tuple[float, ...], "to sample at"] = (1.0, 0.5),
    n: Annotated[Count, "samples of each held-out problem at each temperature"] = 64,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    names = [f"{temperature:g}" for temperature in temperatures]
    if not names or min(temperatures) <= 0 or len(set(names)) < len(names):
        raise UsageError(f"--temperatures {','.join(map(str, temperatures))}: give numbers above 0, each once")
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    if judges is None:
        stages += judge_stages(b, first, seed, judge_steps, problems, samples)
    for name, temperature in zip(names, temperatures, strict=True):
        answers = Samples(n, replace(b.sampling, temperature=temperature))
        job = b.evaluate_with(answers, first, seed, max_concurrency=32)
        stages.append(Stage(f"samples-{name}", job))
    return Stages(tuple(stages))
