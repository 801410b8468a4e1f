"""Effort levels as they are defined (`ponder.reason.effort`): the answer alone, one chain, and votes of 8 to 64 chains.

Every level is a run of its own on the same held-out problems. `ponder book effort` sets accuracy beside tokens and
FLOPs. The tiny model, which reads digits alone, cannot be asked for the answer without its working: it has no level
`none`. Results: docs/book/effort.md.
"""

from dataclasses import replace
from typing import Annotated

from _bases import (
    NO_SETTINGS,
    Limit,
    MaxTokens,
    ModelName,
    Start,
    TaskName,
    TaskSettings,
    Template,
    find_base,
)

from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Strategy
from ponder.reason.effort import EFFORTS, Effort
from ponder.reason.prompts import DIRECT
from ponder.reason.strategies import Chain, MajorityVote
from ponder.types import Sampling


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 128,
    temperature: Annotated[float, "of every level, so that levels differ in compute alone"] = 0.7,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    tiny = isinstance(b.model, ScratchModel)
    longest = b.sampling.max_tokens if b.has_cold_start or max_tokens else None  # sums have a form, and a length
    stages: list[Stage] = []
    first = start or str(b.model)
    if start is None and b.has_cold_start:
        stages, first = [Stage("start", b.cold_start_job(seed))], "stage:start"
    for name, level in EFFORTS.items():
        if not (tiny and level.strategy == "direct"):
            way = level_strategy(level, temperature, longest)
            stages.append(Stage(f"effort-{name}", b.evaluate_with(way, first, seed, max_concurrency=128)))
    return Stages(tuple(stages))


def level_strategy(level: Effort, temperature: float, longest: int | None) -> Strategy:
    """The strategy of a level; no answer is longer than `longest`."""
    tokens = min(level.max_answer_tokens, longest or level.max_answer_tokens)
    sampling = Sampling(temperature=temperature, max_tokens=tokens)
    if level.answers > 1:
        return MajorityVote(level.answers, sampling=sampling)
    chain = Chain(sampling)
    return replace(chain, prompt=DIRECT) if level.strategy == "direct" else chain
