"""Settings that cannot do what they say are told, and those that can are not."""

from __future__ import annotations

from typing import Any

import pytest

from ponder.errors import UsageError
from ponder.reason.budget import Budget
from ponder.reason.effort import EFFORTS
from ponder.reason.ineffective_settings import check_budget, ineffective_settings
from ponder.reason.presets import PRESETS
from ponder.reason.strategies import (
    DVTS,
    MCTS,
    STRATEGIES,
    BeamSearch,
    BestOfN,
    Cascade,
    Chain,
    Forest,
    GraphOfThoughts,
    LengthRejection,
    MajorityVote,
    ParticleFilter,
    Rebase,
    RStarConsistency,
    Samples,
    SampleTree,
    STaR,
    TreeOfThoughts,
)  # fmt: skip
from ponder.reason.strategies.graph_of_thoughts import Solve
from ponder.types import Sampling

GREEDY = Sampling(temperature=0.0)
ALIKE = [
    (MajorityVote(n=8, sampling=GREEDY), "8 chains of a vote at temperature 0 are all the same"),
    (MajorityVote(n=8, sampling=Sampling(top_k=1)), "8 chains of a vote with top_k 1 are all the same"),
    (Samples(4, GREEDY), "4 samples of a problem"),
    (STaR(n=3, sampling=GREEDY), "3 samples of a problem"),
    (BestOfN(5, sampling=GREEDY), "5 samples, of which the best is taken, at temperature 0"),
    (BeamSearch(n=4, beam_width=2, sampling=GREEDY), "2 continuations of a step (BeamSearch)"),
    (DVTS(n=4, beam_width=2, sampling=GREEDY), "2 continuations of a step (DVTS)"),
    (Rebase(n=6, sampling=GREEDY), "6 continuations of a step (Rebase)"),
    (ParticleFilter(n=6, sampling=GREEDY), "6 continuations of a step (ParticleFilter)"),
    (MCTS(width=3, sampling=GREEDY), "3 children of a step (MCTS)"),
    (SampleTree(widths=(1, 4), sampling=GREEDY), "4 branches of a step"),
    (LengthRejection(max_attempts=9, sampling=GREEDY), "9 attempts"),
    (Forest(strategy=Chain(GREEDY), trees=7), "7 trees of a forest"),
    (TreeOfThoughts(evaluations_per_thought=3, sampling=GREEDY), "3 evaluations of a thought"),
    (GraphOfThoughts(operations=(Solve(n=3),), sampling=GREEDY), "3 solutions of a part"),
    (Cascade(cheap=Samples(4, GREEDY)), "4 samples of a problem"),
    (RStarConsistency(strategy=MCTS(width=3, sampling=GREEDY)), "3 children of a step (MCTS)"),
    (MCTS(width=1), "a width of 1 is a single chain"),
    (MajorityVote(n=1), "a vote of one chain"),
    (BestOfN(1), "the best of one sample"),
    (Rebase(n=1), "Rebase with n of 1"),
    (Forest(trees=1), "a forest of one tree"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "message"), ALIKE, ids=lambda x: x if isinstance(x, str) else "")
def test_identical_samples_are_warned_about(strategy: Any, message: str) -> None:
    assert any(message in line for line in ineffective_settings(strategy)), ineffective_settings(strategy)


@pytest.mark.parametrize("name", [*STRATEGIES, *PRESETS])
def test_default_strategies_have_no_ineffective_setting(name: str) -> None:
    kind = STRATEGIES[name]() if name in STRATEGIES else PRESETS[name].strategy
    assert ineffective_settings(kind) == []


def test_budget_below_one_answer_is_warned_about() -> None:
    (text,) = ineffective_settings(MajorityVote(n=2, sampling=Sampling(max_tokens=256)), Budget(10))
    assert "the budget of 10 tokens is less than one answer may have (256)" in text
    for level in EFFORTS.values():
        assert ineffective_settings(Samples(2, Sampling(max_tokens=level.max_answer_tokens)), level.budget) == []


def test_budget_that_buys_no_answer_is_refused() -> None:
    for strategy, tokens, said in (
        (Chain(), 1, "1 token is less than an answer and its end"),
        (MajorityVote(n=8), 7, "7 tokens is not a token for each of 8 chains of a vote"),
        (MCTS(width=4), 3, "3 tokens is not a token for each of 4 children"),
    ):
        with pytest.raises(UsageError, match=said):
            check_budget(strategy, Budget(tokens))
        check_budget(strategy, Budget(tokens + 1))
    check_budget(Chain(), None)
    check_budget(Chain(), Budget(seconds=1))
    for level in EFFORTS.values():
        check_budget(Samples(level.answers), level.budget)
