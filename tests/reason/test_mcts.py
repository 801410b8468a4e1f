"""Monte Carlo tree search: trees worked out by hand, mctx's, and what must hold whatever the policy writes."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import run_async
from ponder.errors import BudgetExhausted, ModelError, PonderError, UsageError
from ponder.pipelines.solve import solve
from ponder.reason.budget import Budget
from ponder.reason.operators.backpropagate import DiscountedBackup
from ponder.reason.operators.cut import CUTS
from ponder.reason.operators.tree_policy import PUCT, UCT, X1, DirichletNoise, ProgressiveWidening
from ponder.reason.strategies import STRATEGIES
from ponder.reason.strategies.mcts import MCTS
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import (
    Completion,
    Cost,
    Ids,
    Message,
    Problem,
    Sampling,
    Score,
    Trace,
    ids,
    prompt_trace,
    user_messages,
)

from .scripted_policy import LINES, ScriptedPolicy, TableScorer, question_trace, tree_lines

SCRIPT = {"": ["a\n", "b\n"], "a\n": ["c=1", "d=2"], "b\n": ["e=3", "f=4"]}
RATED = TableScorer({"a\n": 0.5, "b\n": 0.3, "c=1": 0.9, "d=2": 0.1, "e=3": 0.2, "f=4": 0.4})
TWO = MCTS(width=2, cut=LINES, complete_answer=False)


def grown(strategy: MCTS, policy: Any = None, guide: Any = RATED, trace: Trace | None = None) -> Trace:
    trace = question_trace() if trace is None else trace
    run_async(strategy(trace, policy or ScriptedPolicy(SCRIPT), guide))
    return trace


# By hand. Each simulation: the scores that decide, and what is backed up.


def test_uct_search_equals_hand_count() -> None:
    # 1 a: .5   2 b: .3   3 a 1.548 > b 1.348, c: .9   4 a 1.533 > b 1.477, d: .1   5 b 1.569 > a 1.233, e: .2
    # 6 a 1.273 > b 1.197, c 1.948 > d 1.148: .9
    trace = grown(replace(TWO, simulations=6, selection=UCT(1.0)))
    assert tree_lines(trace) == [
        "Q: x6 0.483333",
        "  a/ x4 0.6",
        "    c=1 x2 0.9 *",
        "    d=2 x1 0.1",
        "  b/ x2 0.25",
        "    e=3 x1 0.2",
        "    f=4 x0 0",
    ]


def test_puct_search_equals_hand_count() -> None:
    # Priors a .8, b .2, others .5. With w(N) = sqrt(N) (1.25 + log((N + 19653) / 19652)): 1.2501, 1.7680, 2.1654, ...
    # 1 a: .5   2 a .5 + .8 w/2 = 1.207 > b .354, c: .9   3 a 1.277 > .433, c 1.342 > d .884: .9
    # 4 a 1.267 > .500, c 1.261 > d 1.083: .9   5 a 1.247 > .559, d 1.250 > c 1.213: .1
    policy = ScriptedPolicy(
        SCRIPT, logprob=lambda text: {"a\n": math.log(0.8) / 2, "b\n": math.log(0.2) / 2}.get(text, -1.0)
    )
    trace = grown(replace(TWO, simulations=5, selection=PUCT(low=0, high=1)), policy)
    assert tree_lines(trace) == ["Q: x5 0.66", "  a/ x5 0.66", "    c=1 x3 0.9 *", "    d=2 x1 0.1", "  b/ x0 0"]
    assert [s.prior for s in trace.steps[1:]] == pytest.approx([0.8, 0.2, 0.5, 0.5], abs=1e-6)


def test_x1_search_equals_hand_count() -> None:
    # All children are judged when written, with one visit each.
    # 1 a .5, b .3; root .96 .4   2 by value a; c .9, d .1; a .96 .5; root .96 (2 .48 + .3) / 3
    # 3 b .925 > a .897; e .2, f .4; b .288   4 a 1.069 > b .877, c: again .9; a .96 (2 .9 + .1) / 3
    trace = grown(replace(TWO, simulations=4, selection=X1(), backup=DiscountedBackup(), evaluate_on="expansion"))
    assert tree_lines(trace) == [
        "Q: x4 0.4608",
        "  a/ x3 0.608",
        "    c=1 x2 0.9 *",
        "    d=2 x1 0.1",
        "  b/ x2 0.288",
        "    e=3 x1 0.2",
        "    f=4 x1 0.4",
    ]
    ended = grown(
        replace(
            TWO,
            simulations=9,
            selection=X1(),
            backup=DiscountedBackup(),
            evaluate_on="expansion",
            stop_at_known_answer=True,
        )
    )
    assert [s.visits for s in ended.steps] == [3, 2, 2, 1, 1, 1, 1], "x1 stops when selection comes to an answer"


def test_rollout_and_guide_values_are_mixed() -> None:
    script = {"": ["a\n", "b\n"], "a\n": ["x=1", "y=2"], "b\n": ["z=3"]}
    guide = TableScorer({"a\n": 0.4, "b\n": 0.2, "x=1": 1.0, "y=2": 0.5, "z=3": 0.6})
    both = grown(
        replace(TWO, simulations=2, selection=UCT(), rollouts=2, rollout_weight=0.25), ScriptedPolicy(script), guide
    )
    # a: .75 .4 + .25 .75 = .4875; b: .75 .2 + .25 .6 = .3
    assert [s.value for s in both.steps[1:3]] == pytest.approx([0.4875, 0.3])
    assert both.steps[3].last and both.text(both.chosen or 0) == "a\nx=1", "the best rollout below the best step"
    guide.calls.clear()
    alone = grown(replace(TWO, simulations=2, selection=UCT(), rollouts=1), ScriptedPolicy(script), guide)
    assert guide.calls == [["x=1"], ["z=3"]], "of the steps themselves nobody is asked"
    assert [s.value for s in alone.steps[1:3]] == [1.0, 0.6]


def test_the_best_way_is_by_visits_by_value_or_the_best_score_anywhere() -> None:
    script = {"": ["a\n", "b\n"], "a\n": ["c=1"], "b\n": ["d=2"]}
    guide = TableScorer({"a\n": 0.9, "b\n": 0.1, "c=1": 0.6, "d=2": 1.0})
    search = replace(TWO, width=2, selection=UCT(0.0), simulations=4)
    assert grown(search, ScriptedPolicy(script), guide).chosen is not None
    by = {
        how: grown(replace(search, final_choice=how), ScriptedPolicy(script), guide)
        for how in ("visits", "value", "score")
    }
    assert {how: t.text(t.chosen or 0) for how, t in by.items()} == {
        "visits": "a\nc=1", "value": "a\nc=1", "score": "a\nc=1",
    }  # fmt: skip
    more = replace(search, selection=UCT(5.0), simulations=6, final_choice="score")
    result = grown(more, ScriptedPolicy(script), guide)
    assert result.text(result.chosen or 0) == "b\nd=2"


# mctx 0.0.71: muzero_policy, 30 simulations, no noise, qtransform_by_min_max from 0 to 1, on a complete tree of 3 moves
# and depth 4 (children of node i are 3 i + 1, + 2, + 3) with these values and priors.
BRANCHES, DEPTH = 3, 4
FIRST_LEAF = sum(BRANCHES**d for d in range(DEPTH))
MCTX_VISITS = {
    1: 12, 2: 7, 3: 11, 4: 1, 5: 9, 6: 1, 7: 2, 8: 4, 11: 1, 12: 9, 16: 1, 17: 7, 23: 1, 27: 3, 39: 8, 53: 6, 82: 2,
    120: 7,
}  # fmt: skip


def numbered() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    values = np.round(rng.random(FIRST_LEAF + BRANCHES**DEPTH), 3)
    priors = rng.random((len(values), BRANCHES))
    return values, np.round(priors / priors.sum(1, keepdims=True), 3)


def node(tokens: Ids) -> int:
    at = 0
    for move in tokens[1:].tolist():
        at = BRANCHES * at + 1 + move
    return at


@dataclass
class Complete:
    """The complete tree as a policy and a guide."""

    name: str = "complete"

    def __post_init__(self) -> None:
        self.values, self.priors = numbered()

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids([9])

    def tokens(self, text: str) -> Ids:
        return ids([])

    def text(self, tokens: Ids) -> str:
        return ""

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        at = node(prefix)
        stop = "eos" if BRANCHES * at + 1 >= FIRST_LEAF else "stop"
        logs = np.log(np.maximum(self.priors[at], 1e-30).astype(np.float32))
        return [Completion(str(m), ids([m]), logs[m : m + 1], stop, 0, Cost()) for m in range(n)]  # type: ignore[arg-type]

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(self.values[node(trace.token_ids(i))])) for i in steps]


def test_search_equals_mctx() -> None:
    world = Complete()
    strategy = MCTS(
        simulations=30, width=3, cut=CUTS["token"], selection=PUCT(low=0, high=1), sampling=Sampling(max_tokens=9)
    )
    trace = prompt_trace(Problem("p", user_messages("?")), ids([9]))
    run_async(strategy(trace, world, world))
    visits = {node(trace.token_ids(i)): s.visits for i, s in enumerate(trace.steps) if s.visits and i}
    assert visits == MCTX_VISITS
    assert [trace.steps[i].value for i in (1, 2, 3)] == pytest.approx([0.687, 0.338571, 0.697091], abs=1e-5)


# Whatever is written: a policy that is a function of its prefix and of the seed, so that two runs can be compared.


@dataclass
class Pure:
    delays: int | None = None  # seed of how long each call takes
    calls: int = 0
    spends: int | None = None

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids([1, 2])

    def tokens(self, text: str) -> Ids:
        return ids(map(ord, text))

    def text(self, tokens: Ids) -> str:
        return " ".join(map(str, tokens.tolist()))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.calls += 1
        if self.spends is not None and self.calls > self.spends:
            raise BudgetExhausted("no more")
        if self.delays is not None:
            for _ in range(random.Random(f"{self.delays} {self.calls}").randrange(6)):
                await asyncio.sleep(0)
        rng = random.Random(f"{prefix.tolist()} {sampling.seed} {sampling.stop == ()}")
        out = []
        for _ in range(n):
            tokens = [rng.randrange(3, 40) for _ in range(rng.randrange(1, 4))][: sampling.max_tokens]
            ends = sampling.stop == () or rng.random() < 0.2
            logs = np.array([-rng.random() for _ in tokens], np.float32)
            text, stop = self.text(ids(tokens)) + ("" if ends else "\n"), "eos" if ends else "stop"
            out.append(Completion(text, ids(tokens), logs, stop, 0, Cost(generated_tokens=len(tokens))))  # type: ignore[arg-type]
        return out


class Crc:
    """A guide that is a function of the tokens."""

    name = "crc"
    two_player = True  # where the search is for two, these are in the eyes of who moved

    def __init__(self, undecided: float = 0.0, delays: int | None = None) -> None:
        self.undecided, self.delays, self.calls = undecided, delays, 0

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        self.calls += 1
        if self.delays is not None:
            for _ in range(random.Random(f"{self.delays} {self.calls}").randrange(6)):
                await asyncio.sleep(0)
        drawn = [random.Random(str(trace.token_ids(i).tolist())) for i in steps]
        return [Score(None, "lost") if r.random() < self.undecided else Score(r.random()) for r in drawn]


def fresh() -> Trace:
    return prompt_trace(Problem("p", user_messages("?")), ids([1, 2]))


SEARCHES = st.builds(
    MCTS,
    width=st.integers(1, 4),
    selection=st.sampled_from([UCT(1.0), PUCT(), PUCT(low=0, high=1), X1()]),
    backup=st.sampled_from([MCTS().backup, DiscountedBackup()]),
    evaluate_on=st.sampled_from(["visit", "expansion"]),
    rollouts=st.sampled_from([0, 0, 1, 2]),
    rollout_weight=st.sampled_from([1.0, 0.4]),
    widening=st.sampled_from([None, None, ProgressiveWidening(1, 0.5)]),
    root_noise=st.sampled_from([None, DirichletNoise()]),
    two_player=st.booleans(),
    cut=st.just(CUTS["line"]),
    sampling=st.just(Sampling(max_tokens=40, seed=7)),
    complete_answer=st.just(False),
)


def invariants(trace: Trace, strategy: MCTS) -> None:
    thought = [i for i in range(len(trace.steps)) if trace.path(i)[0] == 0]  # without the text that showed the cut
    for i, step in ((i, trace.steps[i]) for i in thought):
        below = [trace.steps[k] for k in trace.children(i)]
        assert not (step.visits and step.pruned and not below) or step.done or strategy.widening, (
            "no visit, then pruned"
        )
        tree = [s for s in below if not s.last]
        assert len(tree) <= strategy.width
        if strategy.evaluate_on == "visit" and tree:
            assert step.visits == sum(s.visits for s in tree) + (i != 0), "its own visit, and those of its children"
        if step.last:
            assert not below and not step.visits


@settings(max_examples=25, deadline=None)
@given(SEARCHES, st.integers(1, 25), st.sampled_from([0.0, 0.2]))
def test_counts_add_up_and_a_second_call_changes_nothing(strategy: MCTS, simulations: int, undecided: float) -> None:
    strategy, trace = replace(strategy, simulations=simulations), fresh()
    try:
        run_async(strategy(trace, Pure(), Crc(undecided)))
    except PonderError as error:
        assert "failed" in str(error) and undecided
        return
    closed = not any(not trace.steps[k].pruned for k in trace.children(0) if not trace.steps[k].last)
    assert trace.steps[0].visits == simulations or closed
    invariants(trace, strategy)
    before = json.dumps(trace_to_json(trace))
    run_async(strategy(trace, Pure(), Crc(undecided)))
    assert json.dumps(trace_to_json(trace)) == before
    again = trace_from_json(json.loads(before))
    assert json.dumps(trace_to_json(again)) == before and decode(json.loads(json.dumps(encode(strategy)))) == strategy


@settings(max_examples=25, deadline=None)
@given(SEARCHES, st.integers(2, 20), st.integers(0, 30), st.sampled_from([1, 3]))
def test_stopped_search_resumes_to_the_same_tree(strategy: MCTS, simulations: int, spends: int, parallel: int) -> None:
    strategy = replace(strategy, simulations=simulations, parallel_simulations=parallel)
    whole = fresh()
    run_async(strategy(whole, Pure(), Crc()))
    parts = fresh()
    if parallel == 1:  # with several under way, which of them the budget stops is not the tree's to say
        run_async(strategy(parts, Pure(spends=spends), Crc()))
        parts = trace_from_json(trace_to_json(parts))
        run_async(strategy(parts, Pure(), Crc()))
        assert trace_to_json(parts) == trace_to_json(whole)
    fewer = fresh()
    for n in {simulations // 2 or 1, simulations}:
        if parallel == 1:
            run_async(replace(strategy, simulations=n)(fewer, Pure(), Crc()))
    assert parallel > 1 or trace_to_json(fewer) == trace_to_json(whole)


@settings(max_examples=20, deadline=None)
@given(SEARCHES, st.integers(2, 8), st.integers(0, 1000), st.sampled_from([0.0, None, -1.0]))
def test_parallel_simulations_give_one_tree_in_any_order(
    strategy: MCTS, parallel: int, delays: int, loss: float | None
) -> None:
    strategy = replace(strategy, simulations=24, parallel_simulations=parallel, virtual_loss=loss)
    trees = []
    for seed in (None, delays, delays + 1):
        trace = fresh()
        run_async(strategy(trace, Pure(seed), Crc(delays=seed)))
        assert trace.steps[0].visits == 24 or not any(not trace.steps[k].pruned for k in trace.children(0))
        invariants(trace, strategy)
        trees.append(trace_to_json(trace))
    assert trees[0] == trees[1] == trees[2]


def test_simulations_run_in_parallel() -> None:
    class Counting(Pure):
        now = most = 0

        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.001)
            out = await super().generate(prefix, sampling, n)
            self.now -= 1
            return out

    policy = Counting()
    run_async(
        MCTS(simulations=40, parallel_simulations=4, selection=UCT(1.0), rollouts=1, complete_answer=False)(
            fresh(), policy, Crc()
        )
    )
    assert 3 <= policy.most <= 4


# When something fails.


def test_failed_branch_is_pruned() -> None:
    for parallel in (1, 2):
        policy = ScriptedPolicy(SCRIPT, fails=frozenset(["a\n"]))
        trace = grown(replace(TWO, simulations=6, selection=UCT(1.0), parallel_simulations=parallel), policy)
        assert trace.steps[1].pruned == "the context is full" and trace.steps[0].visits == 6
        assert trace.text(trace.chosen or 0) == "b\nf=4"
    policy = ScriptedPolicy(SCRIPT, fails=frozenset([""]))
    with pytest.raises(ModelError, match="context is full"):
        grown(TWO, policy)


def test_undecided_guide_prunes_the_step() -> None:
    trace = grown(replace(TWO, simulations=6, selection=UCT(1.0)), guide=TableScorer({**RATED.scores, "a\n": None}))
    assert trace.steps[1].pruned == "no score: no idea" and trace.steps[0].visits == 6
    for bad in (RuntimeError("boom"), ModelError("boom")):
        with pytest.raises(PonderError, match=r"search failed.*boom"):
            grown(TWO, guide=TableScorer({"a\n": bad, "b\n": bad}))
    nan = grown(replace(TWO, simulations=3, selection=UCT(1.0)), guide=TableScorer({**RATED.scores, "b\n": math.nan}))
    assert "the score was nan" in nan.steps[2].pruned
    judged = grown(replace(TWO, simulations=3, rollouts=1), guide=TableScorer({**RATED.scores, "c=1": None}))
    assert "no rollout was scored: no idea" in judged.steps[1].pruned


def test_resample_rounds_replace_duplicate_children() -> None:
    policy = ScriptedPolicy({**SCRIPT, "": ["a\n", "a\n", "a\n", "b\n"]})
    for rounds, kept, asked in ((0, ["a\n"], [2]), (1, ["a\n"], [2, 1]), (2, ["a\n", "b\n"], [2, 1, 1])):
        policy.asked.clear()
        policy.given.clear()
        trace = grown(replace(TWO, simulations=1, resample_rounds=rounds), policy)
        children = [trace.steps[k] for k in trace.children(0)]
        assert [c.text for c in children if not c.pruned] == kept and [n for t, n in policy.asked if not t] == asked
        assert sum(c.prior for c in children if not c.pruned) == pytest.approx(1), "priors are of those that stay"
        assert all(c.pruned == "the same as step 1 of these" for c in children if c.pruned)
    poor = ScriptedPolicy({**SCRIPT, "": ["a\n", "a\n", "b\n"]}, spends=1)
    trace = grown(replace(TWO, simulations=2, resample_rounds=3), poor)
    assert trace.steps[1].visits and trace.budget_exhausted, "a round that is not paid for loses nothing"
    assert "greedy" in MCTS(sampling=Sampling(temperature=0), resample_rounds=1).unused()["resample_rounds"]
    with pytest.raises(UsageError, match="resample_rounds is -1"):
        MCTS(resample_rounds=-1)


def test_empty_repeated_and_endless_steps_are_pruned() -> None:
    trace = grown(replace(TWO, simulations=4, width=3), ScriptedPolicy({**SCRIPT, "": ["a\n", "a\n", ""]}))
    assert [s.pruned for s in trace.steps[1:4]] == ["", "the same as step 1 of these", "nothing was written"]
    endless = ScriptedPolicy({"": ["long\n"]})
    with pytest.raises(PonderError, match="no step ended within 3 tokens"):
        grown(replace(TWO, cut=replace(LINES, max_step_tokens=3)), endless)
    with pytest.raises(PonderError, match="no continuation"):

        class NoProgress(ScriptedPolicy):
            async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
                return []

        grown(TWO, NoProgress({}))


def test_dead_end_closes_its_ancestors() -> None:
    script = {"": ["a\n", "b\n"], "a\n": [""], "b\n": ["e=3"]}
    trace = grown(replace(TWO, simulations=5, selection=UCT(1.0)), ScriptedPolicy(script))
    assert trace.steps[1].pruned == "no continuation is open: nothing was written"
    assert trace.text(trace.chosen or 0) == "b\ne=3" and trace.steps[0].visits == 5


def test_exhausted_budget_chooses_the_best_answer_so_far() -> None:
    for tokens in (*range(1, 12), 17, 25, 40):
        strategy = MCTS(
            simulations=50, rollouts=1, parallel_simulations=1 + tokens % 3, sampling=Sampling(max_tokens=30)
        )
        trace = run_async(
            solve(Problem("p", user_messages("?")), strategy, Pure(), guide=Crc(), budget=Budget(tokens=tokens))
        )
        assert trace.cost.generated_tokens <= tokens and not trace.failed
        assert trace.cost.generated_tokens == sum(len(s.token_ids) for s in trace.steps if s.sampled)
        if any(s.last and not s.pruned and s.scores for s in trace.steps):
            assert trace.chosen is not None


def test_best_path_is_completed_to_an_answer() -> None:
    script = {**SCRIPT, "a\n": ["go\n"], "a\ngo\n": ["end=1"]}
    trace = grown(replace(TWO, simulations=2, selection=UCT(1.0), complete_answer=True), ScriptedPolicy(script))
    assert trace.steps[trace.chosen or 0].last and trace.text(trace.chosen or 0).startswith("a\n")
    steps = len(trace.steps)
    grown(replace(TWO, simulations=2, selection=UCT(1.0), complete_answer=True), ScriptedPolicy(script), trace=trace)
    assert len(trace.steps) == steps, "once"


def test_noise_is_on_the_first_steps_only_and_widening_bounds_them() -> None:
    plain, noised = (grown(replace(TWO, simulations=4, root_noise=n)) for n in (None, DirichletNoise(seed=3)))
    assert plain.steps[1].prior == 0.5 != noised.steps[1].prior
    assert noised.steps[1].prior + noised.steps[2].prior == pytest.approx(1)
    trace = fresh()
    sampling = Sampling(seed=1, max_tokens=200)
    strategy = MCTS(
        simulations=9, width=8, widening=ProgressiveWidening(1, 0.5), sampling=sampling, complete_answer=False
    )
    run_async(strategy(trace, Pure(), Crc()))
    assert len(trace.children(0)) == 3, "ceil(sqrt(8)) when the last simulation left"


def test_invalid_settings_are_refused() -> None:
    assert STRATEGIES["mcts"] is MCTS
    with pytest.raises(UsageError, match="needs a guide"):
        run_async(MCTS()(question_trace(), ScriptedPolicy(SCRIPT)))
    for wrong in (
        {"simulations": 0},
        {"width": 0},
        {"rollout_weight": 0},
        {"rollout_weight": 2},
        {"parallel_simulations": 0},
        {"prior_temperature": 0},
    ):
        with pytest.raises(UsageError):
            MCTS(**wrong)
    with pytest.raises(UsageError, match="Did you mean 'visits'"):
        MCTS(final_choice="visit")  # type: ignore[arg-type]


# Time and memory.


class Instant(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.count += n
        one = np.array([-1.0], np.float32)
        return [Completion("t\n", ids([self.count - j]), one, "stop") for j in range(n)]


class Quick:
    name = "quick"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(int(trace.steps[i].token_ids[0]) * 2654435761 % 1000 / 1000) for i in steps]


def per_node(simulations: int) -> float:
    """Lines of Python that one node takes: counted, since time is another on every machine."""
    trace, lines, before = fresh(), 0, sys.gettrace()
    strategy = MCTS(
        simulations=simulations, selection=UCT(1.0), sampling=Sampling(max_tokens=1 << 20), complete_answer=False
    )

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        run_async(strategy(trace, Instant(), Quick()), 60)
    finally:
        sys.settrace(before)
    return lines / len(trace.steps)


def test_work_is_linear_in_the_nodes() -> None:
    assert per_node(1500) < 1.5 * per_node(300)


def test_a_node_takes_less_than_a_kilobyte() -> None:
    trace = fresh()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        strategy = MCTS(
            simulations=400, selection=UCT(1.0), sampling=Sampling(max_tokens=1 << 20), complete_answer=False
        )
        run_async(strategy(trace, Instant(), Quick()), 60)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / len(trace.steps) < 1000
