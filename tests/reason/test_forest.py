"""Several trees in one trace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fakes import FakePolicy
from ponder.errors import ModelError, UsageError
from ponder.protocols import GenerateCall, Scorer
from ponder.reason.strategies import BeamSearch, Chain, Forest, MajorityVote, Samples
from ponder.reason.strategies.forest import ReseededPolicy, split_forest
from ponder.runs.job_json import decode, encode
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Completion, Ids, Sampling, Trace, ids

from .scripted_policy import LINES, ScriptedPolicy, TableScorer, question_trace, tree_lines

TREE = {"": ["a\n", "b\n", "c\n", "d\n", "e\n", "f\n"]}
TREE |= {"a\n": ["=1"], "b\n": ["=1"], "c\n": ["=2"], "d\n": ["=2"], "e\n": ["=3"], "f\n": ["=1"]}
GUIDE = TableScorer(
    {"a\n": 0.9, "b\n": 0.1, "c\n": 0.4, "d\n": 0.5, "e\n": 0.7, "f\n": 0.6, "=1": 0.3, "=2": 0.5, "=3": 0.9}
)


def think(strategy: Any, policy: Any, guide: Scorer | None = None, trace: Trace | None = None) -> Trace:
    trace = question_trace() if trace is None else trace
    asyncio.run(strategy(trace, policy, guide))
    return trace


def test_forest_equals_hand_count() -> None:
    """Three beams of two first steps each: the first answers 1, the second 2, the third 3: a tie, first seen wins."""
    trace = think(Forest(BeamSearch(2, 2, cut=LINES), 3), ScriptedPolicy(TREE), GUIDE)
    assert [i for i, s in enumerate(trace.steps) if s.parent is None] == [0, 5, 10]
    assert tree_lines(trace, 0) == [
        "Q: x2 0",
        "  a/ x2 0.9",
        "    =1 x1 0.3 *",
        "    =1 x1 0.3",
        "  b/ x0 0.1 (not kept)",
    ]
    assert tree_lines(trace, 5) == [
        "Q: x2 0",
        "  c/ x0 0.4 (not kept)",
        "  d/ x2 0.5",
        "    =2 x1 0.5",
        "    =2 x1 0.5",
    ]
    assert tree_lines(trace, 10) == [
        "Q: x2 0",
        "  e/ x2 0.7",
        "    =3 x1 0.9",
        "    =3 x1 0.9",
        "  f/ x0 0.6 (not kept)",
    ]
    weighed = think(Forest(BeamSearch(2, 2, cut=LINES), 3, "score"), ScriptedPolicy(TREE), GUIDE)
    assert weighed.chosen is not None and weighed.text(weighed.chosen) == "e\n=3", "0.9 against 0.5 and 0.3"
    alone = think(BeamSearch(2, 2, cut=LINES), ScriptedPolicy(TREE), GUIDE)
    one_tree = think(Forest(BeamSearch(2, 2, cut=LINES), 1), ScriptedPolicy(TREE), GUIDE)
    assert trace_to_json(one_tree) == trace_to_json(alone)
    assert trace.cost.generated_tokens == sum(len(s.token_ids) for s in trace.steps if s.sampled)


def test_undecided_tree_votes_with_its_most_frequent_answer() -> None:
    policy = ScriptedPolicy({"": ["=1", "=2", "=2", "=2", "=1", "=2"]})
    trace = think(Forest(Samples(3), 2), policy)
    assert trace.chosen == 2
    before = trace_to_json(trace)
    think(Forest(Samples(3), 2), policy, None, trace)
    assert trace_to_json(trace) == before and len(policy.asked) == 2
    chains = think(Forest(Chain(), 2), ScriptedPolicy({"": ["=1", "=2"]}))
    before = trace_to_json(chains)
    assert chains.chosen == 1 and trace_to_json(think(Forest(Chain(), 2), ScriptedPolicy({}), None, chains)) == before


def test_each_tree_has_one_vote() -> None:
    trace = think(Forest(MajorityVote(2), 3), ScriptedPolicy({"": ["=1", "=1", "=2", "x", "=2", "=3"]}))
    assert trace.chosen is not None and trace.text(trace.chosen) == "=2", "two trees against one"


@pytest.mark.parametrize("stop", range(9))
def test_stopped_forest_resumes(stop: int) -> None:
    forest = Forest(BeamSearch(2, 2, cut=LINES), 3)
    whole = think(forest, ScriptedPolicy(TREE), GUIDE)
    policy = ScriptedPolicy(TREE, spends=stop)
    trace = think(forest, policy, GUIDE)
    restored = trace_from_json(trace_to_json(trace))
    restored.extract_answer, policy.spends = trace.extract_answer, None
    think(forest, policy, GUIDE, restored)
    if stop >= 3:  # before, which tree got which first steps depended on who was stopped
        assert trace_to_json(restored) == trace_to_json(whole)
    before, calls = trace_to_json(restored), len(policy.asked)
    think(forest, policy, GUIDE, restored)
    assert trace_to_json(restored) == before and len(policy.asked) == calls


def test_forest_grows_more_trees_later() -> None:
    policy = ScriptedPolicy(TREE)
    trace = think(Forest(BeamSearch(2, 2, cut=LINES), 1), policy, GUIDE)
    think(Forest(BeamSearch(2, 2, cut=LINES), 3), policy, GUIDE, trace)
    assert trace_to_json(trace) == trace_to_json(
        think(Forest(BeamSearch(2, 2, cut=LINES), 3), ScriptedPolicy(TREE), GUIDE)
    )
    assert [len(t.steps) for t in split_forest(trace)] == [5, 5, 5]


def test_trees_pass_several_calls_on_at_once() -> None:
    """Where the policy takes them, with the seeds that single calls would have."""

    class Counted(FakePolicy):
        sizes: list[int] = []  # noqa: RUF012

        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            return await FakePolicy([f"{prefix.tolist()} {sampling.seed}"]).generate(prefix, sampling, n)

        async def generate_many(self, calls: Sequence[GenerateCall]) -> list[list[Completion]]:
            self.sizes.append(len({id(sampling) for _, sampling, _ in calls}))
            return [await self.generate(*call) for call in calls]

    policy, same = Counted([""]), Sampling(seed=7)
    calls = [(ids([i]), sampling, 1 + i) for i, sampling in enumerate([same, same, Sampling(), Sampling(seed=8)])]
    for number in (1, 2):
        tree = ReseededPolicy(policy, number)
        assert tree.generate_many is not None

        async def texts(tree: ReseededPolicy = tree) -> list[list[list[str]]]:
            assert tree.generate_many is not None
            groups = await tree.generate_many(calls), [await tree.generate(*call) for call in calls]
            return [[[c.text for c in group] for group in side] for side in groups]

        many, each = asyncio.run(texts())
        assert many == each and [len(group) for group in many] == [1, 2, 3, 4]
        assert many[0][0] != "[0] 7" and many[2][0] == "[2] None"
    assert policy.sizes == [3, 3], "calls with one sampling still have one, which is checked once"
    assert ReseededPolicy(FakePolicy([""]), 1).generate_many is None


def test_seeded_trees_differ() -> None:
    class Seeded(FakePolicy):
        async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
            return await FakePolicy([str(sampling.seed)]).generate(prefix, sampling, n)

    forest = Forest(Chain(Sampling(seed=7)), 3)
    trace = think(forest, Seeded())
    text = [s.text for s in trace.steps if s.parent is not None]
    assert text[0] == "7" and len(set(text)) == 3
    assert [s.text for s in think(forest, Seeded()).steps] == [s.text for s in trace.steps], (
        "and are the same each time"
    )


class Breaks:
    """The first calls break; the others answer."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    async def __call__(self, trace: Trace, policy: Any, scorer: Scorer | None = None) -> None:
        self.left -= 1
        if self.left >= 0:
            raise ModelError("the server is down")
        await Chain()(trace, policy)


def test_failed_tree_has_no_vote() -> None:
    policy = ScriptedPolicy({"": ["=1"]})
    trace = think(Forest(Breaks(2), 3), policy)
    assert [s.pruned for s in trace.steps if s.parent is None] == ["the server is down"] * 2 + [""]
    assert trace.chosen == 3 and trace.failed == ""
    think(Forest(Breaks(0), 3), policy, None, trace)
    assert [s.pruned for s in trace.steps] == [""] * 6, "they may be tried again"
    with pytest.raises(ModelError, match="server is down"):
        think(Forest(Breaks(3), 3), policy)
    spent = think(Forest(Chain(), 2), ScriptedPolicy({}, spends=0))
    assert spent.budget_exhausted and not spent.failed and spent.chosen is None


def test_invalid_settings_are_refused() -> None:
    for make, says in [
        (lambda: Forest(trees=0), "at least one"), (lambda: Forest(strategy=3), "of a strategy"),
        (lambda: Forest(Forest()), "of a strategy"), (lambda: Forest(weight="scores"), "Did you mean 'score'"),  # type: ignore[arg-type]
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=says):
            make()
    with pytest.raises(UsageError, match="needs a guide"):
        think(Forest(Chain(), weight="score"), ScriptedPolicy({}))
    assert decode(encode(Forest(MajorityVote(3), 2, "score"))) == Forest(MajorityVote(3), 2, "score")
