"""Votes and best of n: who wins, when it is decided, what a weight is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import ModelError, PonderError, UsageError
from ponder.pipelines.solve import solve
from ponder.protocols import Scorer
from ponder.reason.budget import Budget
from ponder.reason.operators.vote import majority_answer, weighted_answer
from ponder.reason.prompts import STEP_BY_STEP
from ponder.reason.scorers import StepScoreReducer
from ponder.reason.strategies import BestOfN, MajorityVote
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_to_json
from ponder.types import Completion, Ids, Sampling, Trace
from ponder.verify.answers.style import answer_instruction

from .scripted_policy import LINES, ScriptedPolicy, TableScorer, question_trace, tree_lines


def think(strategy: Any, policy: Any, guide: Scorer | None = None, trace: Trace | None = None) -> Trace:
    trace = question_trace() if trace is None else trace
    asyncio.run(strategy(trace, policy, guide))
    return trace


def said(trace: Trace) -> str | None:
    return None if trace.chosen is None else trace.text(trace.chosen)


def test_vote_chooses_the_most_frequent_answer() -> None:
    policy = ScriptedPolicy({"": ["=2", "=1", "x", "=1"]})
    trace = think(MajorityVote(4), policy)
    assert tree_lines(trace) == ["Q: x0 0", "  =2 x0 0", "  =1 x0 0 *", "  x x0 0", "  =1 x0 0"]
    assert policy.asked == [("", 4)], "all at once: the prompt is shared"
    assert said(think(MajorityVote(4), ScriptedPolicy({"": ["=2", "=1", "=1", "=2"]}))) == "=2", "first seen wins ties"
    nobody = think(MajorityVote(2), ScriptedPolicy({"": ["x", ""]}))
    assert nobody.chosen is None and nobody.failed == "" and nobody.steps[2].pruned == "nothing was written"


def test_a_vote_weighted_by_score() -> None:
    tree = {"": ["=1", "a=1", "=2", "=3"]}
    guide = TableScorer({"=1": 0.2, "a=1": 0.3, "=2": 0.6, "=3": None})
    assert said(think(MajorityVote(4, "score"), ScriptedPolicy(tree), guide)) == "=2"
    assert said(think(MajorityVote(4), ScriptedPolicy(tree), guide)) == "=1", (
        "the guide is not asked where votes are counted"
    )
    later = think(MajorityVote(2, "score"), ScriptedPolicy({"": ["a=1", "=1"]}), TableScorer({"a=1": None, "=1": 0.1}))
    assert said(later) == "=1", "the one that voted"
    broken = think(MajorityVote(2, "score"), ScriptedPolicy(tree), TableScorer({"=1": ValueError("no")}))
    assert broken.chosen is None and broken.failed.startswith(
        "no chain has a score: the scorer rated crashed: ValueError: no ("
    )
    with pytest.raises(UsageError, match="needs a guide"):
        think(MajorityVote(weight="score"), ScriptedPolicy(tree))


def test_a_vote_weighted_by_likelihood() -> None:
    """exp(-0.1) = 0.905 against twice exp(-1) = 0.736; at twice exp(-0.7) = 0.993 the two win."""
    tree = {"": ["=1", "=1", "=2"]}
    sure = ScriptedPolicy(tree, logprob=lambda t: -0.1 if t == "=2" else -1.0)
    assert said(think(MajorityVote(3, "likelihood"), sure)) == "=2"
    less = ScriptedPolicy(tree, logprob=lambda t: -0.1 if t == "=2" else -0.7)
    assert said(think(MajorityVote(3, "likelihood"), less)) == "=1"
    silent = think(MajorityVote(3, "likelihood"), ScriptedPolicy(tree, logprob=lambda t: float("nan")))
    assert (
        silent.chosen is None
        and silent.failed == "the policy returns nothing to weight votes by likelihood: give weight=count"
    )


@dataclass
class Measured(ScriptedPolicy):
    """Tells how spread out its distributions were, where asked."""

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        drawn = await super().generate(prefix, sampling, n)
        spread = {"=1": 2.0, "=2": 0.1}
        return [
            replace(
                c, notes={m: np.full(len(c.token_ids), spread[c.text] / 4, np.float32) for m in sampling.token_stats}
            )
            for c in drawn
        ]


@pytest.mark.parametrize("weight", ["entropy", "gini"])
def test_a_vote_weighted_by_spread(weight: Any) -> None:
    """By entropy: twice exp(-0.5) = 1.213 beats exp(-0.025); by 1 - Gini: twice 0.5 beats 0.975. Three times 2 wins."""
    assert said(think(MajorityVote(3, weight), Measured({"": ["=2", "=1", "=1"]}))) == "=1"
    assert said(think(MajorityVote(3, weight), Measured({"": ["=1", "=2", "=2"]}))) == "=2"
    assert said(think(MajorityVote(2, weight), Measured({"": ["=1", "=2"]}))) == "=2", (
        "not the first seen: the surer one"
    )


def test_settled_vote_stops_early() -> None:
    """After 2, 1, 1, 1 of six there are two left: 2 can tie, and was seen first. One more for 1 settles it."""
    policy = ScriptedPolicy({"": ["=2", "=1", "=1", "=1", "=1", "=2"]})
    trace = think(MajorityVote(6, early_stopping="decided"), policy)
    assert policy.asked == [("", 1)] * 5 and said(trace) == "=1"
    threes = ScriptedPolicy({"": ["=1", "=1", "=1", "=1", "=1", "=2"]})
    think(MajorityVote(6, early_stopping="decided", chains_per_round=3), threes)
    assert threes.asked == [("", 3)], "three of six, seen first: at best a tie"
    odd = ScriptedPolicy({"": ["=1", "=2"]})
    think(MajorityVote(7, early_stopping="decided", chains_per_round=3), odd)
    assert odd.asked == [("", 3), ("", 3), ("", 1)]


def test_beta_rule_stops_early() -> None:
    """P(p > 1/2 | 4 to 0) = 31/32 is the first above 0.95; against one dissenter it takes 6 (0.965; 5: 0.9375)."""
    same = ScriptedPolicy({"": ["=1"]})
    think(MajorityVote(20, early_stopping="beta"), same)
    assert len(same.asked) == 4
    one = ScriptedPolicy({"": ["=2", *["=1"] * 20]})
    think(MajorityVote(20, early_stopping="beta"), one)
    assert len(one.asked) == 7
    silent = ScriptedPolicy({"": ["x"]})
    think(MajorityVote(5, early_stopping="beta"), silent)
    assert len(silent.asked) == 5, "nobody leads among no votes"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["=1", "=2", "=3", "x"]), min_size=1, max_size=9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from(["count", "likelihood", "score"]),
)
def test_stopping_early_never_changes_the_outcome(texts: list[str], n: int, size: int, weight: Any) -> None:
    guide = TableScorer({"=1": 0.2, "=2": 0.9, "=3": None})
    logprob = {"=1": -0.5, "=2": -1.5, "=3": -0.1, "x": -1.0}
    all_at_once = think(MajorityVote(n, weight), ScriptedPolicy({"": texts}, logprob=logprob.__getitem__), guide)
    early = think(
        MajorityVote(n, weight, "decided", size), ScriptedPolicy({"": texts}, logprob=logprob.__getitem__), guide
    )
    assert said(early) == said(all_at_once) and len(early.steps) <= len(all_at_once.steps)


def test_score_above_one_prevents_settling() -> None:
    with pytest.raises(UsageError, match="leave out early_stopping"):
        think(MajorityVote(4, "score", "decided"), ScriptedPolicy({"": ["=1"]}), TableScorer({"=1": 3.5}))


def test_vote_resumes_with_more_samples() -> None:
    policy, guide = ScriptedPolicy({"": ["=1", "=2", "=2", "=3"]}), TableScorer({"=1": 1.0, "=2": 0.9})
    trace = think(MajorityVote(2, "score"), policy, guide)
    assert said(trace) == "=1"
    think(MajorityVote(4, "score"), policy, guide, trace)
    assert said(trace) == "=2" and policy.asked == [("", 2), ("", 2)] and guide.calls == [["=1", "=2"], ["=2", "=3"]]
    before = trace_to_json(trace)
    think(MajorityVote(4, "score"), policy, guide, trace)
    assert trace_to_json(trace) == before and len(policy.asked) == len(guide.calls) == 2


def test_vote_decides_by_the_samples_of_its_budget() -> None:
    policy = ScriptedPolicy({"": ["=1", "=1", "=2"]}, spends=2)
    trace = think(MajorityVote(9, early_stopping="decided"), policy)
    assert said(trace) == "=1" and trace.failed == "" and len(trace.steps) == 3
    nothing = think(MajorityVote(9), ScriptedPolicy({}, spends=0))
    assert nothing.chosen is None and nothing.budget_exhausted and not nothing.failed
    problem = question_trace().problem
    few = asyncio.run(solve(problem, MajorityVote(8), ScriptedPolicy({"": ["=1"]}), budget=Budget(tokens=7)))
    assert few.budget_exhausted and not few.failed and not few.answers(), "less than a token for each"


def test_vote_decides_when_the_policy_fails_later() -> None:
    @dataclass
    class Breaks(ScriptedPolicy):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            if len(self.asked) == 2:
                raise ModelError("the server is down")
            return await super().generate(prefix, sampling, n)

    trace = think(MajorityVote(9, early_stopping="decided"), Breaks({"": ["=1"]}))
    assert said(trace) == "=1" and len(trace.steps) == 3, "those that have voted decide"
    with pytest.raises(ModelError, match="server is down"):
        think(MajorityVote(3), Breaks({}, asked=[("", 1)] * 2))


def test_vote_uses_its_own_prompt() -> None:
    trace = think(
        MajorityVote(2, prompt=STEP_BY_STEP), ScriptedPolicy({f"\n{answer_instruction('cot')}": ["=1", "=1"]})
    )
    assert [s.parent for s in trace.steps] == [None, None, 1, 1] and said(trace) == "=1"


def test_best_of_by_score() -> None:
    tree = {"": ["=1", "=1", "=2", "x"]}
    trace = think(BestOfN(4), ScriptedPolicy(tree), TableScorer({"=1": 0.4, "=2": 0.6, "x": None}))
    assert said(trace) == "=2" and tree_lines(trace)[-1] == "  x x0 0 (no score: no idea)"
    summed = think(BestOfN(4, choose="weighted"), ScriptedPolicy(tree), TableScorer({"=1": 0.4, "=2": 0.6}))
    assert said(summed) == "=1", "0.8 against 0.6"
    unread = think(BestOfN(2), ScriptedPolicy({"": ["who knows", "=2"]}), TableScorer({"who knows": 0.9, "=2": 0.1}))
    assert said(unread) == "=2", "a text that states no answer is not chosen"
    silent = think(BestOfN(2), ScriptedPolicy({"": ["hm", "who knows"]}), TableScorer({"who knows": 0.9, "hm": 0.1}))
    assert said(silent) == "who knows", "unless none states any"


def test_best_of_by_log_probability() -> None:
    policy = ScriptedPolicy({"": ["=1", "long=2"]}, logprob=lambda t: -0.5 if t == "=1" else -0.3)
    assert said(think(BestOfN(2, "logprob"), policy)) == "long=2", "the mean, not the sum"
    silent = think(BestOfN(2, "logprob"), ScriptedPolicy({"": ["=1"]}, logprob=lambda t: float("nan")))
    assert silent.chosen is None and "does not return log-probabilities" in silent.failed


@pytest.mark.parametrize(
    ("how", "best"), [("min", "c\n=3"), ("product", "b\n=2"), ("last", "a\n=1"), ("mean", "b\n=2")]
)
def test_best_of_by_the_scores_of_steps(how: Any, best: str) -> None:
    """a: 0.1, 1. b: 0.95, 0.5. c: 0.6, 0.6. Least: 0.1, 0.5, 0.6. Product: 0.1, 0.475, 0.36. Mean: 0.55, 0.725, 0.6."""
    tree = {"": ["a\n", "b\n", "c\n"], "a\n": ["=1"], "b\n": ["=2"], "c\n": ["=3"]}
    guide = TableScorer({"a\n": 0.1, "=1": 1.0, "b\n": 0.95, "=2": 0.5, "c\n": 0.6, "=3": 0.6})
    policy = ScriptedPolicy(tree)
    trace = think(BestOfN(3, cut=LINES, reduce=how), policy, StepScoreReducer(guide))
    assert said(trace) == best and policy.asked == [("", 3), ("a\n", 1), ("b\n", 1), ("c\n", 1)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MajorityVote(0), "at least one"),
        (lambda: MajorityVote(chains_per_round=0), "round is 0"),
        (lambda: MajorityVote(min_leader_probability=1.0), "0.5 and 1"),
        (lambda: MajorityVote(weight="counts"), "Did you mean 'count'"),  # type: ignore[arg-type]
        (lambda: MajorityVote(early_stopping="betta"), "Did you mean 'beta'"),  # type: ignore[arg-type]
        (lambda: MajorityVote(early_stopping="beta", weight="score"), "counts votes"),
        (lambda: BestOfN(0), "at least 1"),
        (lambda: BestOfN(rank_by="scores"), "Did you mean 'score'"),  # type: ignore[arg-type]
        (lambda: BestOfN(reduce="max"), "reduction"),  # type: ignore[arg-type]
    ],
)
def test_invalid_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(PonderError, match=says):
        make()


def test_strategies_survive_job_json() -> None:
    for strategy in (MajorityVote(4, "gini", "decided", 2), BestOfN(4, "logprob", cut=LINES, prompt=STEP_BY_STEP)):
        assert decode(encode(strategy)) == strategy


def test_strategies_agree_with_the_vote_operators() -> None:
    texts: Sequence[str] = ["=1", "=2", "=2", "=3", "=3"]
    answers = [t[1:] for t in texts]
    assert said(think(MajorityVote(5), ScriptedPolicy({"": texts}))) == f"={majority_answer(answers)}"
    scores = {"=1": 0.9, "=2": 0.1, "=3": 0.3}
    trace = think(MajorityVote(5, "score"), ScriptedPolicy({"": texts}), TableScorer(scores))
    assert said(trace) == f"={weighted_answer(answers, [scores[t] for t in texts])}"


def test_only_whole_chains_vote() -> None:
    """Another strategy began with a step: that is no chain, and no answer."""
    trace = question_trace()
    policy = ScriptedPolicy({"": ["a=1\n", "=2", "=2"], "a=1\n": ["b=3"]})
    asyncio.run(BestOfN(1, rank_by="logprob", cut=LINES)(trace, policy))
    think(MajorityVote(2), policy, trace=trace)
    assert said(trace) == "=2" and len([i for i in trace.children(0) if trace.steps[i].done]) == 2


def test_a_vote_by_probability_counts_for_its_answer() -> None:
    """Sums of log-probabilities are below 0: two votes would weigh less than one."""
    policy = ScriptedPolicy({"": ["=1", "a=1", "=2"]}, logprob=lambda text: -1.0)
    assert said(think(BestOfN(3, rank_by="logprob", choose="weighted"), policy)) == "=1"
