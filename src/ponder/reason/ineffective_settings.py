"""Settings that have no effect: a vote among identical samples, a tree with one branch.

Such a run works but does not measure what its name says; so there is a warning and no error. (Training on a group of
equal answers learns nothing at all, and is refused: see `pipelines.rl`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ponder.errors import UsageError
from ponder.reason.budget import Budget
from ponder.reason.inner_strategies import inner_strategies
from ponder.reason.strategies import (
    DVTS,
    MCTS,
    BeamSearch,
    BestOfN,
    Forest,
    GraphOfThoughts,
    LengthRejection,
    MajorityVote,
    ParticleFilter,
    Rebase,
    Samples,
    SampleTree,
    STaR,
    TreeOfThoughts,
)  # fmt: skip
from ponder.types import Sampling

TEMPERATURE_ADVICE = "give a temperature above 0"


def ineffective_settings(strategy: Any, budget: Budget | None = None) -> list[str]:
    """One sentence for each setting of a strategy, and of those inside it, that has no effect."""
    warnings = [*_single_choice(strategy), *_identical_draws(strategy)]
    sampling = getattr(strategy, "sampling", None)
    most = None if budget is None else budget.tokens
    if most is not None and isinstance(sampling, Sampling) and most < sampling.max_tokens:
        message = f"the budget of {most:,} tokens is less than one answer may have ({sampling.max_tokens:,})"
        warnings.append(f"{message}: long ones are cut short there")
    warnings += [line for one in inner_strategies(strategy).values() for line in ineffective_settings(one)]
    return list(dict.fromkeys(warnings))


def check_budget(strategy: Any, budget: Budget | None) -> None:
    """Refuse a budget that cannot pay a token for each sample that a strategy draws first, or an answer and its end."""
    if budget is None or budget.tokens is None:
        return
    one_by_one = isinstance(strategy, Forest | GraphOfThoughts | LengthRejection | STaR | TreeOfThoughts)
    count, samples = (1, "answer") if one_by_one else next(_draw_counts(strategy), (1, "answer"))
    if budget.tokens < max(count, 2):
        each = f"not a token for each of {count:,} {samples}" if count > 1 else "less than an answer and its end"
        unit = "token" if budget.tokens == 1 else "tokens"
        raise UsageError(f"a budget of {budget.tokens:,} {unit} is {each}: give more")


def _identical_draws(strategy: Any) -> Iterator[str]:
    """Several samples that are always equal."""
    inner = strategy.strategy if isinstance(strategy, Forest) else strategy  # a forest samples as its trees do
    sampling = getattr(inner, "sampling", None)
    if not isinstance(sampling, Sampling) or not sampling.deterministic:
        return
    how = "at temperature 0" if sampling.temperature == 0 else f"with top_k {sampling.top_k}"
    for count, samples in _draw_counts(strategy):
        if count > 1:
            yield f"{count:,} {samples} {how} are all the same: {TEMPERATURE_ADVICE}, or draw one"


def _draw_counts(strategy: Any) -> Iterator[tuple[int, str]]:
    """How many samples from one prefix a strategy compares, and their name."""
    name = type(strategy).__name__
    match strategy:
        case Samples() | STaR():
            yield strategy.n, "samples of a problem"
        case MajorityVote():
            yield strategy.n, "chains of a vote"
        case BestOfN():
            yield strategy.n, "samples, of which the best is taken,"
        case BeamSearch() | DVTS():
            yield strategy.beam_width, f"continuations of a step ({name})"
        case Rebase() | ParticleFilter():
            yield strategy.n, f"continuations of a step ({name})"
        case MCTS():
            yield strategy.width, "children of a step (MCTS)"
            yield strategy.rollouts, "rollouts of a step (MCTS)"
        case SampleTree():
            yield max(strategy.widths), "branches of a step"
        case LengthRejection():
            yield strategy.max_attempts, "attempts"
        case Forest():
            yield strategy.trees, "trees of a forest"
        case TreeOfThoughts():
            yield (strategy.thoughts_per_step if strategy.generation == "sample" else 1), "thoughts after each"
            yield strategy.evaluations_per_thought, "evaluations of a thought"
        case GraphOfThoughts():
            yield max(getattr(o, "n", 1) for o in strategy.operations), "solutions of a part"


def _single_choice(strategy: Any) -> Iterator[str]:
    """A choice with one option."""
    match strategy:
        case MCTS(width=1, widening=None):
            yield "a tree search with a width of 1 is a single chain: give a width of 2 or more"
        case MajorityVote(n=1):
            yield "a vote of one chain is that chain: give n of 2 or more, or take the strategy chain"
        case BestOfN(n=1):
            yield "the best of one sample is that sample: give n of 2 or more, or take the strategy chain"
        case BeamSearch(n=1) | DVTS(n=1) | Rebase(n=1) | ParticleFilter(n=1):
            name = type(strategy).__name__
            yield f"{name} with n of 1 is a single chain, and its guide has nothing to choose: give n of 2 or more"
        case Forest(trees=1):
            yield "a forest of one tree is that tree: give 2 or more"
