"""Strategies compared on one small model and the same problems: accuracy and tokens of each.

No reward model is trained: a strategy that needs a guide uses the likelihood of the model's own text. Afterwards
`ponder compare runs/compare_strategies/chain runs/compare_strategies/vote ...` compares them with paired intervals.

The searches cut steps where the model ends them, for sums at lines, so beam, DVTS and MCTS grow trees of several
steps. No figures are stated here. Runs made when the default was a blank line had trees one step deep, so that beam and
DVTS were best of n in them: do not compare those with new ones.
"""

from dataclasses import replace

from _bases import (
    LIMIT,
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
from ponder.reason.strategies import DVTS, MCTS, BeamSearch, BestOfN, Chain, MajorityVote


def recipe(
    model: ModelName = "tiny",
    task: TaskName = None,
    task_settings: TaskSettings = NO_SETTINGS,
    template: Template = None,
    max_tokens: MaxTokens = None,
    limit: Limit = LIMIT,
    n: int = 16,
    start: Start = None,
    seed: int = 0,
) -> Stages:
    b = find_base(model, task, task_settings, template, max_tokens, limit)
    stages, first = b.cold_start_stages(seed, start)
    ways = {
        "chain": Chain(replace(b.sampling, temperature=0.0)),
        "vote": MajorityVote(n, sampling=b.sampling),
        "vote-by-likelihood": MajorityVote(n, weight="likelihood", sampling=b.sampling),
        "vote-decided": MajorityVote(n, early_stopping="decided", sampling=b.sampling),
        "best-by-likelihood": BestOfN(n, sampling=b.sampling),
        "beam": BeamSearch(n=n, beam_width=4, sampling=b.sampling),
        "dvts": DVTS(n=n, beam_width=4, sampling=b.sampling),
        "mcts": MCTS(simulations=n, width=4, sampling=b.sampling, parallel_simulations=4),
    }
    for name, way in ways.items():
        guide = "" if name.startswith(("chain", "vote")) else "likelihood"
        stages.append(Stage(name, b.evaluate_with(way, first, seed, guide=guide)))
    return Stages(tuple(stages))
