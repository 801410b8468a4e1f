"""Beam, lookahead, DVTS, REBASE and particles: trees written out by hand, stopping and going on, what goes wrong."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import char_policy, run_async
from ponder.engine.request import Request, SequenceState
from ponder.errors import ModelError, PonderError, UsageError
from ponder.pipelines.solve import solve, solve_all
from ponder.protocols import Policy, PolicyWrapper, Scorer
from ponder.reason.budget import Budget, BudgetedPolicy, BudgetLedger
from ponder.reason.operators.cut import Cut
from ponder.reason.price import Price
from ponder.reason.scorers import StepScoreReducer
from ponder.reason.strategies import DVTS, BeamSearch, BestOfN, LookaheadBeamSearch, ParticleFilter, Rebase
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Completion, Ids, Problem, Sampling, Score, Trace, user_messages

from .scripted_policy import ASKED, LINES, ScriptedPolicy, TableScorer, question_trace, tree_lines

TREE = {
    "": ["a\n", "b\n", "c\n", "d\n"],
    "a\n": ["e\n", "=1"],
    "a\ne\n": ["=1", "=3"],
    "b\n": ["=4", "g\n"],
    "c\n": ["=2", "f\n"],
    "c\nf\n": ["=2", "=2"],
}
SCORES = {"a\n": 0.9, "b\n": 0.1, "c\n": 0.5, "d\n": 0.2, "e\n": 0.3, "f\n": 0.7, "=1": 0.8, "=2": 0.6, "=3": 0.1}


def think(strategy: Any, policy: Any, guide: Scorer | None = None, trace: Trace | None = None) -> Trace:
    trace = question_trace() if trace is None else trace
    asyncio.run(strategy(trace, policy, guide))
    return trace


def test_beam_search_equals_hand_count() -> None:
    """Keep 2 of 4, each by 2. Answers leave the beam; the third level has the n-th. 2: 3 x 0.6 beats 1: 2 x 0.8."""
    policy, guide = ScriptedPolicy(TREE), TableScorer(SCORES)
    trace = think(BeamSearch(4, 2, cut=LINES), policy, guide)
    assert tree_lines(trace) == [
        "Q: x4 0",
        "  a/ x2 0.9",
        "    e/ x2 0.3",
        "      =1 x1 0.8",
        "      =3 x1 0.1",
        "    =1 x1 0.8",
        "  b/ x0 0.1 (not kept)",
        "  c/ x2 0.5",
        "    =2 x1 0.6 *",
        "    f/ x2 0.7",
        "      =2 x1 0.6",
        "      =2 x1 0.6",
        "  d/ x0 0.2 (not kept)",
    ]
    assert policy.asked == [("", 4), ("a\n", 2), ("c\n", 2), ("a\ne\n", 2), ("c\nf\n", 2)], "one call for a parent"
    assert guide.calls == [["a\n", "b\n", "c\n", "d\n"], ["e\n", "=1", "=2", "f\n"], ["=1", "=3", "=2", "=2"]]
    best = think(BeamSearch(4, 2, cut=LINES, choose="best"), ScriptedPolicy(TREE), guide)
    assert best.chosen is not None and best.text(best.chosen) == "a\n=1"


def test_a_beam_ends_with_n_answers() -> None:
    tree = {"": ["=1", "=1", "a\n", "b\n"], "a\n": ["=2", "=3"], "b\n": ["c\n", "d\n"]}
    trace = think(
        BeamSearch(4, 2, cut=LINES), ScriptedPolicy(tree), TableScorer({"a\n": 0.5, "b\n": 0.4, "=1": 0.5, "=3": 1.1})
    )
    assert tree_lines(trace) == [
        "Q: x4 0",
        "  =1 x1 0.5",
        "  =1 x1 0.5",
        "  a/ x2 0.5",
        "    =2 x1 0",
        "    =3 x1 1.1 *",
        "  b/ x2 0.4",
        "    c/ x0 0 (not kept)",
        "    d/ x0 0 (not kept)",
    ]


def test_beam_shares_its_width_when_few_steps_are_left() -> None:
    tree = {"": ["=1", "=1", "=1", "a\n"], "a\n": ["=2"]}
    trace = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(tree), TableScorer({}))
    assert [trace.steps[i].text for i in trace.children(4)] == ["=2"] * 4


def test_duplicate_steps_stay_by_default() -> None:
    tree = {"": ["a\n", "a\n", "b\n", "b\n"], "a\n": ["=1"], "b\n": ["=2"]}
    guide = TableScorer({"a\n": 0.9, "b\n": 0.5})
    both = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(tree), guide)
    assert [s.visits for s in both.steps[1:5]] == [2, 2, 0, 0], "the published code's default"
    one = think(BeamSearch(4, 2, cut=LINES, filter_duplicates=True), ScriptedPolicy(tree), guide)
    assert [s.visits for s in one.steps[1:5]] == [2, 0, 2, 0]


def test_dvts_equals_hand_count() -> None:
    """{a, b} and {c, d} are subtrees of their own: c goes on though b is better. In a's the best is an answer; in c's
    it is f, so the answer beside it is dropped."""
    trace = think(DVTS(4, 2, cut=LINES), ScriptedPolicy(TREE), TableScorer(SCORES | {"b\n": 0.8}))
    assert tree_lines(trace) == [
        "Q: x4 0",
        "  a/ x2 0.9",
        "    e/ x0 0.3 (not kept)",
        "    =1 x1 0.8",
        "  b/ x0 0.8 (not kept)",
        "  c/ x2 0.5",
        "    =2 x0 0.6 (not kept)",
        "    f/ x2 0.7",
        "      =2 x1 0.6 *",
        "      =2 x1 0.6",
        "  d/ x0 0.2 (not kept)",
    ]


def test_dvts_keeps_its_subtrees_apart_where_a_step_is_undecided() -> None:
    tree = {"": ["a\n", "b\n", "c\n", "d\n"], "b\n": ["=1"], "c\n": ["=2"], "d\n": ["=3"]}
    trace = think(
        DVTS(4, 2, cut=LINES), ScriptedPolicy(tree), TableScorer({"a\n": None, "b\n": 0.1, "c\n": 0.5, "d\n": 0.4})
    )
    assert [s.visits for s in trace.steps[1:5]] == [0, 2, 2, 0] and trace.steps[1].pruned == "no score: no idea"


def test_lookahead_equals_hand_count() -> None:
    """a looks better than b, but leads to less: 0.2 against 0.6 one step on."""
    tree = {"": ["a\n", "b\n"], "a\n": ["x\n", "=1"], "b\n": ["y\n", "=2", "=2"]}
    guide = TableScorer({"a\n": 0.9, "b\n": 0.1, "x\n": 0.2, "y\n": 0.6, "=2": 0.5})
    policy = ScriptedPolicy(tree)
    trace = think(LookaheadBeamSearch(2, 2, cut=LINES, lookahead_steps=1), policy, guide)
    assert [h.temperature for h in policy.how] == [1, 0, 0, 1], "it looks ahead greedily"
    assert tree_lines(trace) == [
        "Q: x2 0",
        "  a/ x0 0.2 (not kept)",
        "    x/ x0 0 (only looked ahead)",
        "  b/ x2 0.6",
        "    y/ x0 0 (only looked ahead)",
        "    =2 x1 0.5 *",
        "    =2 x1 0.5",
    ]
    assert guide.calls == [["x\n", "y\n"], ["=2", "=2"]], "the step itself is not rated"
    assert trace.answers() == [5, 6]
    two = think(
        LookaheadBeamSearch(2, 2, cut=LINES, lookahead_steps=2),
        ScriptedPolicy(tree | {"a\nx\n": ["=7"]}),
        TableScorer({"=7": 1.0}),
    )
    assert two.steps[1].visits == 2 and two.steps[1].value == 1.0, "two steps on is an answer"
    policy = ScriptedPolicy(tree)
    whole = think(
        LookaheadBeamSearch(2, 2, cut=LINES, lookahead_steps=1, reduce="min"), policy,
        StepScoreReducer(TableScorer({"a\n": 0.9, "x\n": 0.2, "b\n": 0.1, "y\n": 0.6})),
    )  # fmt: skip
    assert [whole.steps[1].value, whole.steps[2].value] == [0.2, 0.1], "the least on the way to where it looked"


@pytest.mark.parametrize(("rounding", "counts"), [("paper", [2, 2, 1, 0]), ("code", [2, 2, 0, 0])])
def test_rebase_equals_hand_count(rounding: Any, counts: list[int]) -> None:
    """Scores 0.8, 0.8, 0.6, 0.2 share out 4 as in test_allocate. Three answers then leave a width of 1: to e, whose
    share is exp(3) / (exp(3) + exp(2)) = 0.73."""
    tree = {
        "": ["a\n", "b\n", "c\n", "d\n"],
        "a\n": ["=1", "e\n"],
        "b\n": ["=2", "=2"],
        "c\n": ["g\n"],
        "a\ne\n": ["=1"],
    }
    guide = TableScorer({"a\n": 0.8, "b\n": 0.8, "c\n": 0.6, "d\n": 0.2, "e\n": 0.6, "g\n": 0.4, "=1": 0.3, "=2": 0.4})
    trace = think(Rebase(4, cut=LINES, rounding=rounding), ScriptedPolicy(tree), guide)
    assert [s.visits for s in trace.steps[1:5]] == counts
    lines = tree_lines(trace)
    assert lines[1:5] == ["  a/ x2 0.8", "    =1 x1 0.3", "    e/ x1 0.6", "      =1 x1 0.3"]
    assert ("    g/ x0 0.4 (not kept)" in lines) == (rounding == "paper")
    assert trace.chosen is not None and trace.text(trace.chosen) == "b\n=2", "0.8 for 2 against 0.6 for 1"


def test_rebase_ends_when_its_width_is_used_up() -> None:
    tree = {"": ["=1", "a\n"], "a\n": ["=2", "b\n"]}
    trace = think(Rebase(2, cut=LINES), ScriptedPolicy(tree), TableScorer({"=1": 0.5, "=2": 0.4}))
    assert tree_lines(trace) == ["Q: x2 0", "  =1 x1 0.5 *", "  a/ x1 0", "    =2 x1 0.4"]


def test_rebase_counts_the_answers_of_all_levels() -> None:
    """4 - 1 = 3 after the first level; 4 - 1 - 1 = 2 after the second."""
    tree = {"": ["=1", "a\n", "b\n", "c\n"], "a\n": ["d\n"], "b\n": ["e\n"], "c\n": ["=2"]}
    tree |= {"a\nd\n": ["=3"], "b\ne\n": ["=4"]}
    trace = think(Rebase(4, cut=LINES), ScriptedPolicy(tree), TableScorer({"=1": 0.9}))
    assert [s.text for s in trace.steps[1:] if s.visits > 1] == [] and len(trace.answers()) == 4


def test_answers_are_drawn_among_the_particles_of_later_levels() -> None:
    """=1 ends first, with even odds. At the second level it is one of several that are drawn: its copies change."""
    tree = {"": ["=1", "a\n"], "a\n": ["b\n"], "a\nb\n": ["c\n"], "a\nb\nc\n": ["=2"]}
    guide = TableScorer(dict.fromkeys(["=1", "a\n", "b\n", "c\n", "=2"], 0.5))
    for seed in range(12):
        copies = {"=1": 1, "a\n": 1}
        for depth, then in enumerate(["b\n", "c\n", "=2"], 1):  # by hand: what is drawn, then the step goes on
            held = [k for k, count in sorted(copies.items()) for _ in range(count)]
            drawn_ = np.random.default_rng([seed, depth]).multinomial(2, np.full(len(held), 1 / len(held)))
            ones = int(sum(count for k, count in zip(held, drawn_, strict=True) if k == "=1"))
            copies = {"=1": ones, then: 2 - ones}
            if ones == 2:
                break
        trace = think(ParticleFilter(2, cut=LINES, seed=seed), ScriptedPolicy(tree), guide)
        first = trace.steps[1]
        assert first.visits == copies["=1"] and bool(first.pruned) == (not first.visits)


def test_particle_filter_equals_hand_count() -> None:
    """All four are drawn from a, whose odds are 10^14 times the others'. Then =2 and b share the draws: an answer that
    is drawn twice counts twice."""
    tree = {"": ["a\n", "x\n", "y\n", "z\n"], "a\n": ["=1", "=2", "b\n", "c\n"], "a\nb\n": ["=3", "=4", "=5", "=6"]}
    guide = TableScorer({"a\n": 1.0, "=2": 1.0, "b\n": 1.0, "=4": 1.0})
    trace = think(ParticleFilter(4, cut=LINES), ScriptedPolicy(tree), guide)
    weights = np.array([1e-7 / (1 - 1e-7), (1 - 1e-7) / 1e-7, (1 - 1e-7) / 1e-7, 1e-7 / (1 - 1e-7)])
    # in the order of the filter: answers of this level, then steps to go on from
    _, twos, bs, _ = np.random.default_rng([0, 2]).multinomial(4, weights / weights.sum())
    assert (twos, bs) == (2, 2), "of this seed"
    assert tree_lines(trace) == [
        "Q: x4 0",
        "  a/ x4 1",
        "    =1 x0 0 (not kept)",
        "    =2 x2 1 *",
        "    b/ x2 1",
        "      =3 x1 0",
        "      =4 x1 1",
        "    c/ x0 0 (not kept)",
        "  x/ x0 0 (not kept)",
        "  y/ x0 0 (not kept)",
        "  z/ x0 0 (not kept)",
    ]
    votes = think(
        ParticleFilter(4, cut=LINES, choose="majority"), ScriptedPolicy(tree), TableScorer(guide.scores | {"=4": 0.0})
    )
    assert votes.chosen is not None and votes.text(votes.chosen) == "a\n=2", "two of four particles"
    other = {
        str(tree_lines(think(ParticleFilter(4, cut=LINES, seed=s), ScriptedPolicy(tree), guide))) for s in range(8)
    }
    assert len(other) > 1, "another seed draws others"


def test_particle_filter_refuses_scores_outside_0_to_1() -> None:
    with pytest.raises(UsageError, match="take weight='softmax'"):
        think(ParticleFilter(2, cut=LINES), ScriptedPolicy(TREE), TableScorer({"a\n": 3.0, "b\n": -1.0}))
    assert (
        think(ParticleFilter(2, weight="softmax", cut=LINES), ScriptedPolicy(TREE), TableScorer(SCORES)).chosen
        is not None
    )


# Random trees: continuations and scores are functions of the text so far.

SEARCHES = [
    BeamSearch(4, 2, cut=LINES),
    BeamSearch(6, 3, cut=LINES, reduce="mean", choose="best"),
    BeamSearch(4, 2, cut=LINES, filter_duplicates=True),
    DVTS(4, 2, cut=LINES),
    LookaheadBeamSearch(4, 2, cut=LINES, lookahead_steps=2),
    LookaheadBeamSearch(4, 2, cut=LINES, lookahead_steps=1, reduce="min"),
    Rebase(5, cut=LINES),
    Rebase(5, cut=LINES, rounding="code"),
    ParticleFilter(4, cut=LINES),
    ParticleFilter(4, cut=LINES, resampling="systematic", weight="share", choose="weighted"),
    BestOfN(3, cut=LINES),
    BestOfN(3, cut=LINES, rank_by="logprob"),
]
NAMES = [f"{i}-{type(s).__name__}" for i, s in enumerate(SEARCHES)]


def number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest())


class Wild(ScriptedPolicy):
    """Every text has continuations of its own, up to three lines deep."""

    def __init__(self, seed: int, spends: int | None = None) -> None:
        super().__init__(_Wild(seed), spends=spends, logprob=lambda text: -1.0 - number(text) % 5)


@dataclass
class _Wild(dict[str, Sequence[str]]):
    seed: int

    def get(self, text: str, _: Any = None) -> Sequence[str]:  # type: ignore[override]
        deep = text.count("\n")
        ends = [number(self.seed, text, j) % 4 < deep for j in range(40)]
        return [f"{j}={number(self.seed, text, j) % 3}" if end else f"{j}\n" for j, end in enumerate(ends)]


@dataclass(frozen=True)
class Hashed:
    """Scores by the text so far; some are undecided where asked for."""

    gaps: int = 0

    @property
    def name(self) -> str:
        return "hashed"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        values = [number(trace.text(i)) for i in steps]
        return [Score(None, "a gap") if self.gaps and v % self.gaps == 0 else Score(v % 997 / 996) for v in values]


def fitting(strategy: Any, scorer: Scorer) -> Scorer:
    """Where a search reduces scores of steps, the scorer's are such."""
    return StepScoreReducer(scorer) if strategy.reduce else scorer


def shape(trace: Trace) -> tuple[list[str], str | None]:
    """The tree, whoever of two branches was written first."""
    return tree_lines(trace), None if trace.chosen is None else trace.text(trace.chosen)


@pytest.mark.parametrize("strategy", SEARCHES, ids=NAMES)
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 12), st.sampled_from([0, 5]))
def test_stopped_search_resumes_to_the_same_tree(strategy: Any, seed: int, stop: int, gaps: int) -> None:
    whole = think(strategy, Wild(seed), fitting(strategy, Hashed(gaps)))
    policy = Wild(seed, spends=stop)
    trace = think(strategy, policy, fitting(strategy, Hashed(gaps)))
    if not trace.children(0):
        assert trace.budget_exhausted and not trace.failed and trace.chosen is None
    restored = trace_from_json(trace_to_json(trace))  # saved and read again
    restored.extract_answer, policy.spends = trace.extract_answer, None
    think(strategy, policy, fitting(strategy, Hashed(gaps)), restored)
    assert shape(restored) == shape(whole) and restored.failed == whole.failed
    before, calls = trace_to_json(restored), len(policy.asked)
    think(strategy, policy, fitting(strategy, Hashed(gaps)), restored)
    assert trace_to_json(restored) == before and len(policy.asked) == calls, "nothing was left to do"
    assert decode(encode(strategy)) == strategy


@pytest.mark.parametrize("strategy", SEARCHES, ids=NAMES)
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_searches_never_exceed_their_budget(strategy: Any, seed: int, tokens: int) -> None:
    trace, ledger = question_trace(), BudgetLedger(Budget(tokens=tokens))
    think(strategy, BudgetedPolicy(Wild(seed), ledger), fitting(strategy, Hashed()), trace)
    written = sum(len(s.token_ids) for s in trace.steps if s.sampled)
    assert written == trace.cost.generated_tokens == ledger.spent.generated_tokens <= tokens
    assert (trace.chosen is not None or not trace.answers()) or strategy.choose != "best"
    assert trace.failed or trace.budget_exhausted or trace.answers()


@pytest.mark.parametrize("strategy", [s for s in SEARCHES if type(s) is not BestOfN], ids=lambda s: type(s).__name__)
def test_wider_search_resumes_from_a_narrow_one(strategy: Any) -> None:
    policy = Wild(5)
    trace = think(strategy, policy, fitting(strategy, Hashed()))
    before = len(trace.steps)
    answers = {i for i in trace.answers()}
    wide = replace(strategy, n=2 * strategy.n)
    think(wide, policy, fitting(strategy, Hashed()), trace)
    assert len(trace.steps) > before and trace.steps[0].visits == wide.n
    assert not any(
        s.pruned
        for i, s in enumerate(trace.steps)
        if trace.children(i) and not isinstance(strategy, LookaheadBeamSearch)
    )
    if not isinstance(strategy, ParticleFilter | DVTS):
        assert answers <= set(trace.answers())
    after = trace_to_json(trace)
    think(wide, policy, fitting(strategy, Hashed()), trace)
    assert trace_to_json(trace) == after


@pytest.mark.parametrize("strategy", SEARCHES, ids=NAMES)
def test_kept_steps_have_the_children_they_were_allocated(strategy: Any) -> None:
    for seed in range(5):
        trace = think(strategy, Wild(seed), fitting(strategy, Hashed()))
        for i, step in enumerate(trace.steps):
            kids = [j for j in trace.children(i) if trace.steps[j].pruned != "only looked ahead"]
            assert not kids or (len(kids) == step.visits and not step.pruned)
            assert step.done or step.pruned or kids, "nobody is forgotten"


def test_with_a_network_a_seed_gives_the_same_trees() -> None:
    """Tokens are those that were drawn, whatever else was in the batch; nothing is tokenised again."""
    policy = char_policy()
    problems = [Problem(str(i), user_messages(f"{i}+{i}=")) for i in range(2)]
    for strategy in (
        BeamSearch(4, 2),
        DVTS(4, 2),
        LookaheadBeamSearch(4, 2, lookahead_steps=1),
        Rebase(4),
        ParticleFilter(4),
    ):
        strategy = replace(strategy, cut=Cut(tokens=3), sampling=Sampling(max_tokens=6))
        result = []
        for _ in range(2):
            policy.reseed(3)
            traces = run_async(solve_all(problems, strategy, policy, guide=fitting(strategy, Hashed())))
            result.append([[(s.parent, s.token_ids.tolist(), s.visits, s.value) for s in t.steps] for t in traces])
        assert result[0] == result[1]
        for trace in traces:
            for i in trace.answers():
                text = trace.token_ids(i)[len(trace.steps[0].token_ids) :]
                assert policy.text(text[:-1] if trace.steps[i].stop == "eos" else text) == trace.text(i)


class EachByItself(PolicyWrapper):
    """A policy that takes one call at a time."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        return await self.policy.generate(prefix, sampling, n)


@pytest.mark.parametrize("context", [64, 13])
def test_one_call_for_a_level_gives_the_same_tree_as_a_call_for_each_step(
    context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the context is full for some steps, so that the one call fails, and with a price."""
    policy, sizes = char_policy(context=64), list[int]()
    policy.context_length, plain = context, policy.engine.generate_many

    async def counted(requests: Sequence[Request]) -> list[list[SequenceState]]:
        sizes.append(len(requests))
        return await plain(requests)

    monkeypatch.setattr(policy.engine, "generate_many", counted)
    strategy = BeamSearch(8, 2, cut=Cut(tokens=3), sampling=Sampling(max_tokens=12))
    result, costs = [], []
    for wrap in (EachByItself, lambda policy: policy):
        policy.reseed(3)
        budget = Budget(price=Price(1.0, 1.0, 2.0))
        trace = run_async(
            solve(Problem("1", user_messages("1+1=")), strategy, wrap(policy), guide=Hashed(), budget=budget)
        )
        result.append([(s.parent, s.token_ids.tolist(), s.visits, s.value, s.pruned) for s in trace.steps])
        costs.append(trace.cost)
        if wrap is EachByItself:
            assert not sizes
    assert result[0] == result[1] and max(sizes) > 1
    assert costs[0].generated_tokens == costs[1].generated_tokens and costs[1].dollars > 0
    assert costs[0].dollars == pytest.approx(costs[1].dollars)


# What goes wrong.


def test_searches_without_a_guide_are_refused() -> None:
    for strategy in SEARCHES[:-1]:
        trace = question_trace()
        with pytest.raises(UsageError, match="give a scorer"):
            think(strategy, Wild(0), None, trace)
        assert len(trace.steps) == 1, "before anything is spent"


@pytest.mark.parametrize("strategy", SEARCHES[:-2], ids=NAMES[:-2])
def test_failed_branch_is_pruned(strategy: Any) -> None:
    tree = TREE | {"": ["a\n", "b\n", "c\n", "d\n", "h\n", "i\n"]}
    guide = fitting(strategy, TableScorer(SCORES | {"h\n": 0.4, "i\n": 0.8}))
    one = think(strategy, ScriptedPolicy(tree, fails=frozenset({"a\n"})), guide)
    assert one.chosen is not None and one.failed == ""
    if not isinstance(strategy, LookaheadBeamSearch):  # it could not look ahead from there either, and chose another
        assert one.steps[1].pruned == "the context is full" and not one.children(1)
    before = trace_to_json(one)
    think(strategy, ScriptedPolicy(tree, fails=frozenset({"a\n"})), guide, one)
    assert trace_to_json(one) == before, "what failed is not tried again"


def test_search_raises_only_when_all_branches_fail() -> None:
    trace = question_trace()
    with pytest.raises(ModelError, match="context is full"):
        think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(TREE, fails=frozenset({""})), TableScorer(SCORES), trace)
    think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(TREE), TableScorer(SCORES), trace)
    assert trace.chosen is not None, "the first step may be tried again"
    deep = frozenset({"a\ne\n", "c\nf\n"})
    late = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(TREE, fails=deep), TableScorer(SCORES))
    assert late.chosen is not None and late.text(late.chosen) == "a\n=1", "by the answers that there are"


@pytest.mark.parametrize(
    "guide",
    [
        TableScorer(dict.fromkeys(SCORES)),
        TableScorer({"a\n": ValueError("broken")}),
        TableScorer({"a\n": ModelError("no room")}),
    ],
    ids=["undecided", "crashes", "refuses"],
)
def test_undecided_guide_fails_the_trace(guide: TableScorer) -> None:
    trace = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(TREE), guide)
    assert trace.chosen is None and trace.failed.startswith("no branch came to an answer: no score: ")
    assert all(s.pruned for s in trace.steps[1:])


def test_partly_undecided_guide_prunes_those_steps() -> None:
    nan = float("nan")
    trace = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(TREE), TableScorer(SCORES | {"a\n": nan, "d\n": None}))
    assert [s.visits for s in trace.steps[1:5]] == [0, 2, 2, 0]
    assert trace.steps[1].pruned == "no score: the score was nan"

    class Short(TableScorer):
        async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
            return [Score(1.0)]

    short = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(TREE), Short({}))
    assert "gave 1 scores for 4 steps" in short.failed


def test_empty_and_endless_steps_are_pruned() -> None:
    empty = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy({"": ["", "a\n"], "a\n": ["=1"]}), TableScorer({}))
    assert [s.pruned for s in empty.steps[1:5]] == ["nothing was written", "", "nothing was written", ""]
    assert empty.chosen is not None
    never = think(
        BeamSearch(2, 2, cut=Cut(stop=("\n",), max_step_tokens=3)), ScriptedPolicy({"": ["abcdef"]}), TableScorer({})
    )
    assert never.failed == "no branch came to an answer: no step ended within 3 tokens" and never.chosen is None
    unread = think(BeamSearch(2, 2, cut=LINES), ScriptedPolicy({"": ["who knows"]}), TableScorer({}))
    assert unread.chosen is None and unread.failed == "" and len(unread.answers()) == 2, "answers that nobody can read"


def test_answer_ends_at_max_tokens() -> None:
    """Four tokens in all: steps of two, and the second fills it."""
    four = Sampling(max_tokens=4)
    trace = think(
        BeamSearch(2, 1, cut=LINES, sampling=four), ScriptedPolicy({}, else_="a\n"), TableScorer({"a\n": 0.5})
    )
    assert tree_lines(trace) == ["Q: x2 0", "  a/ x1 0.5", "    a/ x1 0.5", "  a/ x1 0.5", "    a/ x1 0.5"]
    assert [len(trace.token_ids(i)) for i in trace.answers()] == [len(ASKED) + 4] * 2


def test_budget_below_one_step_is_exhausted() -> None:
    problem = question_trace().problem
    trace = asyncio.run(
        solve(
            problem,
            BeamSearch(4, 2, cut=LINES),
            ScriptedPolicy(TREE),
            guide=TableScorer(SCORES),
            budget=Budget(tokens=3),
        )
    )
    assert trace.budget_exhausted and not trace.failed and trace.chosen is None and trace.cost.generated_tokens == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BeamSearch(6, 4), "beam_width must divide n"),
        (lambda: BeamSearch(0, 1), "divide"),
        (lambda: DVTS(4, 3), "divide"),
        (lambda: Rebase(0), "at least 1"),
        (lambda: Rebase(temperature=0.0), "positive"),
        (lambda: Rebase(rounding="up"), "no rounding named 'up'"),  # type: ignore[arg-type]
        (lambda: ParticleFilter(0), "give at least 1"),
        (lambda: ParticleFilter(seed=-1), "positive"),
        (lambda: ParticleFilter(weight="odd"), "Did you mean 'odds'"),  # type: ignore[arg-type]
        (lambda: BeamSearch(choose="vote"), "way to choose"),
        (lambda: BeamSearch(reduce="max"), "reduction"),  # type: ignore[arg-type]
        (lambda: LookaheadBeamSearch(lookahead_steps=-1), "0 or more"),
        (lambda: LookaheadBeamSearch(cut=None), "needs a cut"),
    ],
)
def test_invalid_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(PonderError, match=says):
        make()
