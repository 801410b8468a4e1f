"""A path's score is reduced once, from the raw scores of its steps, whoever ranks by it: each against a hand count."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Scorer
from ponder.reason.harvest import Provenance, harvest_chains
from ponder.reason.operators.evaluate import REDUCTIONS, Reduction, path_score, reduce_scores, scores_steps
from ponder.reason.replay_policy import ReplayPolicy, ReplayScorer
from ponder.reason.scorers import Likelihood, OutcomeAndValue, StepScoreReducer
from ponder.reason.strategies import (
    DVTS,
    MCTS,
    BeamSearch,
    BestOfN,
    Forest,
    LookaheadBeamSearch,
    MajorityVote,
    ParticleFilter,
    Rebase,
)
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Cost, Score, Trace

from .scripted_policy import LINES, ScriptedPolicy, TableScorer, question_trace

STEPS = {"a\n": 0.592, "b\n": 0.814, "c\n": 0.798, "d\n": 0.809, "=1": 0.818}
CHAIN = {"": ["a\n"], "a\n": ["b\n"], "a\nb\n": ["c\n"], "a\nb\nc\n": ["d\n"], "a\nb\nc\nd\n": ["=1"]}
# By hand: .592 x .814 x .798 x .809 x .818 = .25448; the sum is 3.831.
COUNTED: dict[Reduction, float] = {"min": 0.592, "product": 0.254479, "last": 0.818, "mean": 0.7662}
EVERY = pytest.mark.parametrize("how", COUNTED)
SEARCHES = [
    BeamSearch(2, 1, cut=LINES),
    DVTS(2, 1, cut=LINES),
    Rebase(2, cut=LINES),
    LookaheadBeamSearch(2, 1, cut=LINES, lookahead_steps=2),
    ParticleFilter(2, cut=LINES),
    BestOfN(2, cut=LINES),
]


def think(strategy: Any, guide: Scorer | None, policy: Any = None, trace: Trace | None = None) -> Trace:
    trace = question_trace() if trace is None else trace
    asyncio.run(strategy(trace, policy or ScriptedPolicy(CHAIN), guide))
    return trace


@EVERY
def test_reduce_scores_equals_hand_count(how: Reduction) -> None:
    assert reduce_scores(list(STEPS.values()), how) == pytest.approx(COUNTED[how], abs=1e-6)
    with pytest.raises(UnknownName, match="median"):
        reduce_scores([0.5], "median")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="without steps"):
        reduce_scores([], how)


@EVERY
@pytest.mark.parametrize("own", REDUCTIONS)
@pytest.mark.parametrize("strategy", SEARCHES, ids=lambda s: type(s).__name__)
def test_searches_reduce_raw_step_scores(strategy: Any, own: Reduction, how: Reduction) -> None:
    """Whatever the guide makes of its step scores itself: a product of products or of leasts is none of these."""
    trace = think(replace(strategy, reduce=how), StepScoreReducer(TableScorer(STEPS), own))
    assert trace.chosen is not None and trace.text(trace.chosen) == "a\nb\nc\nd\n=1"
    for i in trace.answers():
        score = trace.steps[i].scores["rated"]
        assert score.steps == tuple(STEPS.values())
        assert score.value == pytest.approx(COUNTED[own], abs=1e-6)
        assert trace.steps[i].value == pytest.approx(COUNTED[how], abs=1e-6)
    second = next(i for i, s in enumerate(trace.steps) if s.text == "b\n" and not s.pruned)
    ahead = 4 if isinstance(strategy, LookaheadBeamSearch) else 2  # it is rated where looking ahead came to
    assert trace.steps[second].value == pytest.approx(reduce_scores(list(STEPS.values())[:ahead], how))
    assert decode(encode(replace(strategy, reduce=how))) == replace(strategy, reduce=how)


@pytest.mark.parametrize("strategy", SEARCHES, ids=lambda s: type(s).__name__)
def test_default_reduction_is_the_published_one(strategy: Any) -> None:
    trace = think(strategy, StepScoreReducer(TableScorer(STEPS), "product"))
    default: Reduction = "min" if isinstance(strategy, BestOfN) else "last"
    for i in trace.answers():
        assert trace.steps[i].value == pytest.approx(COUNTED[default], abs=1e-6)


# a: 0.1, 1. b: 0.95, 0.5. c: 0.6, 0.6. Least: 0.1, 0.5, 0.6. Product: 0.1, 0.475, 0.36. Mean: 0.55, 0.725, 0.6.
THREE = {"": ["a\n", "b\n", "c\n"], "a\n": ["=1"], "b\n": ["=2"], "c\n": ["=3"]}
RATED = {"a\n": 0.1, "=1": 1.0, "b\n": 0.95, "=2": 0.5, "c\n": 0.6, "=3": 0.6}
BEST = {"min": "c\n=3", "product": "b\n=2", "last": "a\n=1", "mean": "b\n=2"}


@EVERY
@pytest.mark.parametrize("choose", ["best", "weighted"])
@pytest.mark.parametrize(
    "strategy",
    [BestOfN(3, cut=LINES), DVTS(3, 1, cut=LINES), BeamSearch(3, 1, cut=LINES)],
    ids=lambda s: type(s).__name__,
)
def test_chosen_answer_equals_hand_count(strategy: Any, choose: Any, how: Reduction) -> None:
    trace = think(
        replace(strategy, reduce=how, choose=choose), StepScoreReducer(TableScorer(RATED)), ScriptedPolicy(THREE)
    )
    assert trace.chosen is not None and trace.text(trace.chosen) == BEST[how]


@EVERY
def test_every_use_of_a_path_score_has_the_guides_reduction(how: Reduction) -> None:
    """MCTS backs up, votes weigh, forests and harvests choose by `Score.value`, which the guide reduced once."""
    guide = StepScoreReducer(TableScorer(STEPS), how)
    trace = think(MCTS(simulations=5, width=1, cut=LINES, complete_answer=False), guide)
    values = list(STEPS.values())
    worths = [reduce_scores(values[: k + 1], how) for k in range(5)]
    assert trace.steps[0].value == pytest.approx(sum(worths) / 5)
    (end,) = trace.answers()
    assert trace.steps[end].value == pytest.approx(COUNTED[how], abs=1e-6)
    forest = think(
        Forest(BeamSearch(3, 1, cut=LINES, choose="best"), 2, "score"),
        StepScoreReducer(TableScorer(RATED), how),
        ScriptedPolicy(THREE),
    )
    assert forest.chosen is not None
    assert forest.score(forest.chosen, "rated") == pytest.approx(reduce_scores([0.1, 1.0], how)), (
        "by its own rank, the last"
    )
    harvested = list(harvest_chains(trace, "rated", _funnel(), Provenance(), 0.0))
    assert [one.row["score"] for one in harvested] == [pytest.approx(COUNTED[how], abs=1e-6)]


@EVERY
def test_vote_weights_use_the_guides_reduction(how: Reduction) -> None:
    """A vote among the chains of a best-of search with cuts, so that a chain has two scores."""
    trace = think(
        BestOfN(3, cut=LINES, choose="weighted", reduce=how),
        StepScoreReducer(TableScorer(RATED)),
        ScriptedPolicy(THREE),
    )
    weights = {
        "=1": reduce_scores([0.1, 1.0], how),
        "=2": reduce_scores([0.95, 0.5], how),
        "=3": reduce_scores([0.6, 0.6], how),
    }
    assert trace.chosen is not None and trace.steps[trace.chosen].text == max(weights, key=lambda k: weights[k])
    whole = think(
        MajorityVote(3, "score"),
        StepScoreReducer(TableScorer({"=1": 0.3, "=2": 0.2}), how),
        ScriptedPolicy({"": ["=1", "=2", "=2"]}),
    )
    assert whole.chosen is not None and whole.text(whole.chosen) == "=2", "one step each: any reduction is its score"


@EVERY
def test_stored_search_is_ranked_again(how: Reduction) -> None:
    stored = think(BestOfN(3, cut=LINES), StepScoreReducer(TableScorer(RATED)), ScriptedPolicy(THREE))
    stored = trace_from_json(trace_to_json(stored))
    recall = ReplayScorer([stored], "rated")
    assert scores_steps(recall)
    again = think(BestOfN(3, cut=LINES, reduce=how), recall, ReplayPolicy([stored]))
    assert again.chosen is not None and again.text(again.chosen) == BEST[how]
    assert not scores_steps(ReplayScorer([think(BestOfN(3), TableScorer({}), ScriptedPolicy({"": ["=1"]}))], "rated"))


@pytest.mark.parametrize("how", ["min", "product", "mean"])
def test_a_score_of_the_whole_path_is_not_reduced(how: Reduction) -> None:
    for strategy in SEARCHES:
        trace = question_trace()
        with pytest.raises(UsageError, match="likelihood scores a path as a whole"):
            think(replace(strategy, reduce=how), Likelihood(), trace=trace)
        assert len(trace.steps) == 1, "before anything is spent"
    whole = think(BestOfN(2, reduce=how), Likelihood(), ScriptedPolicy({"": ["=1"]}))  # one step: nothing to reduce
    assert whole.chosen is not None
    with pytest.raises(UsageError, match="leave out reduce"):
        BestOfN(2, rank_by="logprob", reduce=how)


def test_path_scorers_rank_by_their_last_score() -> None:
    for strategy in SEARCHES:
        trace = think(strategy, Likelihood())
        for i in trace.answers():
            assert trace.steps[i].value == trace.score(i, "likelihood") == pytest.approx(math.exp(-1.0))


@EVERY
def test_outcomes_at_the_end_and_step_scores_before(how: Reduction) -> None:
    """The outcome is the path's; what is not finished is ranked by its steps."""

    class Outcome:
        name = "outcome"

        async def __call__(self, trace: Trace, steps: Any) -> list[Score]:
            return [Score(0.25) for _ in steps]

    trace = think(
        BeamSearch(2, 1, cut=LINES, reduce=how), OutcomeAndValue(Outcome(), StepScoreReducer(TableScorer(STEPS)))
    )
    fourth = next(i for i, s in enumerate(trace.steps) if s.text == "d\n")
    assert trace.steps[fourth].value == pytest.approx(reduce_scores(list(STEPS.values())[:4], how))
    assert {trace.steps[i].value for i in trace.answers()} == {0.25}


def test_step_scores_are_computed_once() -> None:
    class Costly(TableScorer):
        async def __call__(self, trace: Trace, steps: Any) -> list[Score]:
            return [replace(s, cost=Cost(scorer_tokens=1)) for s in await super().__call__(trace, steps)]

    rated = Costly(STEPS)
    trace = think(BeamSearch(2, 1, cut=LINES), StepScoreReducer(rated))
    asked_for = [text for call in rated.calls for text in call]
    assert len(asked_for) == len([s for s in trace.steps if s.sampled]) == trace.cost.scorer_tokens
    gap = think(BeamSearch(2, 1, cut=LINES), StepScoreReducer(TableScorer(STEPS | {"b\n": None})))
    assert gap.chosen is None and any(s.pruned == "no score: no idea" for s in gap.steps)
    assert path_score(gap, 0, "rated", "min") is None


def _funnel() -> Any:
    from ponder.filter_report import FilterReport

    return FilterReport()
