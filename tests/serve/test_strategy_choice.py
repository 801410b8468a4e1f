"""What a request's effort, strategy and bound come to."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs ponder[serve]")

from ponder.reason.effort import EFFORTS
from ponder.reason.operators.tree_policy import SELECTION_RULES
from ponder.reason.strategies import MCTS, BeamSearch, MajorityVote
from ponder.serve.errors import ApiError
from ponder.serve.generation import GenerationRequest, StrategySpec
from ponder.serve.limits import Limits
from ponder.serve.strategy_choice import Approach, answer_reserve, choose_approach, read_strategy
from ponder.types import Sampling
from serve.live_server import small_models


def approach(room: int = 10_000, suffix: str = "", **fields: Any) -> Approach:
    model, _ = small_models().find("plain")
    return choose_approach(GenerationRequest("plain", **fields), model, Limits(), suffix, room)


def test_efforts_cover_openais_levels_in_order() -> None:
    assert list(EFFORTS) == ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    bounds = [effort.budget.tokens or 0 for effort in EFFORTS.values()]
    assert bounds == sorted(bounds) and len(set(bounds)) == len(bounds)


@pytest.mark.parametrize("effort", EFFORTS)
def test_effort_gives_its_answers_and_tokens(effort: str) -> None:
    level, found = EFFORTS[effort], approach(effort=effort)
    assert found.max_tokens == level.budget.tokens
    if level.answers == 1:
        assert found.strategy is None
    else:
        assert found.strategy.n == level.answers and found.strategy.sampling.max_tokens == level.max_answer_tokens


def test_max_tokens_replaces_the_efforts_bound() -> None:
    assert approach(effort="low", max_tokens=3000).max_tokens == 3000
    assert approach(effort="max", max_tokens=100).max_tokens == 100


def test_context_bounds_a_chain_and_the_answers_of_a_vote() -> None:
    assert approach(room=50).max_tokens == 50
    vote = approach(room=50, effort="medium")
    assert vote.max_tokens == EFFORTS["medium"].budget.tokens and 25 <= vote.strategy.sampling.max_tokens < 50


def test_strategy_settings_reach_the_strategy() -> None:
    found = approach(strategy=read_strategy({"name": "mcts", "simulations": 3, "cut": "line", "selection": "x1"}))
    assert isinstance(found.strategy, MCTS) and found.strategy.simulations == 3
    assert isinstance(found.strategy.selection, SELECTION_RULES["x1"]) and found.strategy.cut.stop == ("\n",)


def test_effort_sets_the_count_of_a_named_strategy_unless_it_is_given() -> None:
    assert approach(effort="medium", strategy=StrategySpec("beam-search")).strategy.n == 8
    assert approach(effort="medium", strategy=StrategySpec("beam-search", {"n": 4, "beam_width": 2})).strategy.n == 4


def test_only_given_sampling_replaces_a_presets_own() -> None:
    own = approach(strategy=StrategySpec("cot-sc")).strategy
    assert isinstance(own, MajorityVote) and own.sampling.temperature == 0.7
    hot = approach(
        strategy=StrategySpec("cot-sc"), sampling=Sampling(temperature=1.5), given=frozenset({"temperature"})
    )
    assert hot.strategy.sampling.temperature == 1.5


def test_suffix_of_the_model_names_a_strategy() -> None:
    assert isinstance(approach(suffix="beam-search").strategy, BeamSearch)
    with pytest.raises(ApiError, match="give one"):
        approach(suffix="beam-search", strategy=StrategySpec("mcts"))


@pytest.mark.parametrize(
    "value",
    ["nothing", "os:system", "tests/x.py:Y", {"name": "mcts", "simulations": 10**9},
     {"name": "mcts", "simulations": "3"}, {"name": "mcts", "simulations": True}, {"name": "mcts", "sampling": {}},
     {"name": "mcts", "cut": "nowhere"}, {"name": "mcts", "guide": "os:system"}, {"name": "chain", "width": 2},
     {"name": "majority-vote", "n": 0}, {"name": "majority-vote", "guide": "likelihood"},
     {"name": "majority-vote", "weight": "score"}, {}, 3, {"name": "mcts", "guide": 3}],
)  # fmt: skip
def test_strategy_that_cannot_work_is_a_400_that_names_the_field(value: Any) -> None:
    with pytest.raises(ApiError) as raised:
        approach(strategy=read_strategy(value))
    assert raised.value.status == 400 and (raised.value.param or "strategy").startswith("strategy")


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 100, 10_000, 1 << 20])
def test_reserve_leaves_tokens_for_an_answer(tokens: int) -> None:
    assert 1 <= answer_reserve(tokens) <= min(tokens, 1024)
