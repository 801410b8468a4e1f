"""Many samples of every held-out problem, of one model or of two sizes, after a short imitation.

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
from _mixed_sums import on_mixed_sums

from ponder.cli.flags import build_with_settings
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import Samples
from ponder.sampling import TOKEN_STATS
from ponder.settings import GreaterThan

TINY_START_STEPS = 250  # the tiny model then solves short sums often and long ones seldom
PIECE_SEEDS = 1000  # seeds of pieces lie so far apart


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 16,
    n: Count = 1024, piece: Annotated[int, "samples of a problem in one stage", GreaterThan(0)] = 256,
    small: Annotated[str | None, "a smaller model beside it; `tiny` has one of half its width"] = None,
    start_steps: Steps = None, token_stats: Annotated[bool, "keep entropies along the answers"] = False,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    from dataclasses import replace

    from ponder.models.scratch_model import ScratchModel

    b = find_base(model, task, task_settings, template, max_tokens, limit)
    b = on_mixed_sums(b, task, max_tokens)
    if task is None and task_settings:
        b = replace(b, task=build_with_settings("task", b.task, task_settings, "task"))
    sampling = replace(b.sampling, token_stats=TOKEN_STATS if token_stats else ())
    if isinstance(b.model, ScratchModel):
        start_steps = start_steps or TINY_START_STEPS
    stages: list[Stage] = []
    for size in ("large", "small") if small else ("large",):
        if size == "small" and isinstance(b.model, ScratchModel):
            own = replace(b, model=replace(b.model, width=b.model.width // 2))
        else:
            own = b if size == "large" else find_base(str(small), task, task_settings, template, max_tokens, limit)
        if start is not None and size == "large":
            first = start
        elif own.has_cold_start:
            stages.append(Stage(f"{size}-start", own.cold_start_job(seed, start_steps)))
            first = f"stage:{size}-start"
        else:
            first = str(own.model)
        stages += [
            Stage(
                f"{size}-{k}",
                own.evaluate_with(
                    Samples(min(piece, n - done), sampling), first, seed + PIECE_SEEDS * k, max_concurrency=2
                ),
            )
            for k, done in enumerate(range(0, n, piece))
        ]
    return Stages(tuple(stages))
