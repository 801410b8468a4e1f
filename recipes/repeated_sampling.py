"""Many samples of every held-out problem, after a short imitation.

The samples come in pieces, each a stage with its own seed, so that a stop costs little. `ponder book monkeys` draws
coverage from them, `ponder book votes` what a vote makes of them, `ponder book tokens` what their tokens tell.
"""

from typing import Annotated

from _bases import (
    NO_SETTINGS,
    Count,
    Limit,
    MaxTokens,
    ModelName,
    Start,
    Steps,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.errors import UsageError
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.sampling import TOKEN_STATS
from ponder.settings import GreaterThan

PIECE_SEEDS = 1000  # seeds of pieces lie so far apart


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 16,
    n: Count = 1024, piece: Annotated[int, "samples of a problem in one stage", GreaterThan(0)] = 256,
    half_width: Annotated[bool, "half the width; of the tiny model"] = False, start_steps: Steps = None,
    token_stats: Annotated[bool, "keep entropies along the answers"] = False,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    from dataclasses import replace

    from ponder.models.scratch_model import ScratchModel

    b = find_base(model, task, task_settings, template, max_tokens, limit)
    if half_width:
        if not isinstance(b.model, ScratchModel):
            raise UsageError("--half-width is of the tiny model, which is made here: give a smaller --model")
        b = replace(b, model=replace(b.model, width=b.model.width // 2))
    sampling = replace(b.sampling, token_stats=TOKEN_STATS if token_stats else ())
    stages: list[Stage] = []
    first = start or str(b.model)
    if start is None and b.has_cold_start:
        stages, first = [Stage("start", b.cold_start_job(seed, start_steps))], "stage:start"
    for k, done in enumerate(range(0, n, piece)):
        strategy = Samples(min(piece, n - done), sampling)
        stages.append(
            Stage(f"samples-{k}", b.evaluate_with(strategy, first, seed + PIECE_SEEDS * k, max_concurrency=3))
        )
    return Stages(tuple(stages))
