"""Searches whose steps keep the entropy of every token: beam search and MCTS, led by the model's own likelihood.

`ponder book forks` reads from their trees at which tokens continuations part. Results: docs/book/forks.md.
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

from ponder.pipelines.stages import Stage, Stages
from ponder.protocols import Strategy
from ponder.reason.strategies import BeamSearch
from ponder.sampling import TOKEN_STATS
from ponder.settings import GreaterThan


def recipe(
    model: ModelName = "tiny", task: TaskName = None, task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None, max_tokens: MaxTokens = None, limit: Limit = 96,
    width: Annotated[int, "answers that the beam grows side by side", GreaterThan(3)] = 16,
    simulations: Annotated[int, "of MCTS", GreaterThan(0)] = 32,
    start: Start = None, seed: int = 0,
) -> Stages:  # fmt: skip
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    b = replace(b, sampling=replace(b.sampling, token_stats=TOKEN_STATS))
    stages: list[Stage] = []
    first = start or str(b.model)
    if start is None and b.has_cold_start:
        stages, first = [Stage("start", b.cold_start_job(seed))], "stage:start"
    ways: dict[str, Strategy] = {
        "beam": BeamSearch(n=width, beam_width=4, sampling=b.sampling, cut=b.cut),
        "mcts": b.mcts(simulations),
    }
    for name, way in ways.items():
        stages.append(Stage(name, b.evaluate_with(way, first, seed, guide="likelihood", max_concurrency=32)))
    return Stages(tuple(stages))
