"""Thinking again from what was stored: the same trees, and the published figures of a public log."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ponder.errors import BudgetExhausted, UnknownName, UsageError
from ponder.pipelines.solve import solve, solve_all
from ponder.protocols import Policy, Scorer
from ponder.reason.budget import Budget
from ponder.reason.operators import add_prompt, insert_text
from ponder.reason.replay_policy import ReplayPolicy, ReplayScorer
from ponder.reason.strategies import (
    DVTS,
    BeamSearch,
    BestOfN,
    Forest,
    LookaheadBeamSearch,
    MajorityVote,
    ParticleFilter,
    Rebase,
)
from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Cost, Problem, Sampling, Score, Step, Trace, ids, user_messages

from .scripted_policy import LINES, ScriptedPolicy, TableScorer, question_trace, tree_lines
from .test_step_searches import SCORES, TREE, Hashed, Wild

LOG = "logs/qwen_math_rm/math_cot_100.jsonl"


def think(strategy: Any, policy: Any, guide: Scorer | None = None, trace: Trace | None = None) -> Trace:
    trace = question_trace() if trace is None else trace
    asyncio.run(strategy(trace, policy, guide))
    return trace


def test_replay_policy_and_scorer_implement_the_protocols() -> None:
    trace = think(BeamSearch(4, 2, cut=LINES), ScriptedPolicy(TREE), TableScorer(SCORES))
    assert isinstance(ReplayPolicy([trace]), Policy) and isinstance(ReplayScorer([trace], "rated"), Scorer)


@pytest.mark.parametrize(
    "strategy",
    [
        BeamSearch(4, 2, cut=LINES),
        DVTS(4, 2, cut=LINES),
        LookaheadBeamSearch(4, 2, cut=LINES, lookahead_steps=2),
        Rebase(5, cut=LINES),
        ParticleFilter(4, cut=LINES),
        BestOfN(3, cut=LINES),
        Forest(BeamSearch(4, 2, cut=LINES), 2),
        MajorityVote(6, "score", "decided"),
    ],
    ids=lambda s: type(s).__name__,
)
def test_a_stored_search_replays_exactly(strategy: Any) -> None:
    for seed in range(6):
        stored = think(strategy, Wild(seed), Hashed(5))
        stored = trace_from_json(trace_to_json(stored))
        again = think(strategy, ReplayPolicy([stored]), ReplayScorer([stored], "hashed"))
        assert trace_to_json(again)["steps"] == trace_to_json(stored)["steps"] and again.chosen == stored.chosen
        assert again.cost.generated_tokens == stored.cost.generated_tokens


def test_another_strategy_replays_the_same_samples() -> None:
    """What a narrower beam would have made of a wide one's steps."""
    stored = think(
        BestOfN(4, cut=LINES),
        ScriptedPolicy(TREE | {"b\n": ["=4"], "d\n": ["=5"], "a\n": ["=1"], "c\n": ["=2"]}),
        TableScorer(SCORES),
    )
    replay, guide = ReplayPolicy([stored]), ReplayScorer([stored], "rated")
    assert tree_lines(think(BeamSearch(2, 1, cut=LINES), replay, guide)) == [
        "Q: x2 0", "  a/ x1 0.9", "    =1 x1 0.8 *", "  b/ x1 0.1", "    =4 x1 0",
    ]  # fmt: skip
    assert replay.continuations_left(stored.token_ids(0)) == 2
    replay.rewind()
    assert replay.continuations_left(stored.token_ids(0)) == 4


def two() -> Trace:
    trace = think(MajorityVote(2), ScriptedPolicy({"": ["=1", "=22"]}))
    trace.cost = Cost(generated_tokens=5, flops=50.0, seconds=10.0, dollars=0.5)
    return trace


def test_continuations_are_replayed_in_order_until_exhausted() -> None:
    replay, prompt = ReplayPolicy([two()]), question_trace().token_ids(0)
    first, second = (asyncio.run(replay.generate(prompt, Sampling()))[0] for _ in range(2))
    assert (first.text, second.text, second.stop) == ("=1", "=22", "eos")
    assert second.token_ids.tolist() == [61, 50, 50] and second.logprobs.tolist() == [-1.0] * 3
    assert second.cost == Cost(prompt_tokens=2, generated_tokens=3, flops=30.0, seconds=6.0, dollars=0.3)
    with pytest.raises(UsageError, match="1 continuations are asked for, and 2 of the 2 stored"):
        asyncio.run(replay.generate(prompt, Sampling()))
    with pytest.raises(UsageError, match="no continuation of this prefix of 1 tokens"):
        asyncio.run(replay.generate(ids([9]), Sampling()))
    again = ReplayPolicy([two()], when_exhausted="cycle")
    assert [c.text for c in asyncio.run(again.generate(prompt, Sampling(), 5))] == ["=1", "=22", "=1", "=22", "=1"]
    with pytest.raises(UsageError, match="Did you mean 'cycle'"):
        ReplayPolicy([two()], when_exhausted="cycles")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least one trace"):
        ReplayPolicy([])
    with pytest.raises(UsageError, match="with its prompt"):
        ReplayPolicy([two(), Trace(question_trace().problem)])


def test_traces_of_one_prompt_share_a_store() -> None:
    replay = ReplayPolicy([two(), two()])
    assert [c.text for c in asyncio.run(replay.generate(question_trace().token_ids(0), Sampling(), 4))] == [
        "=1",
        "=22",
    ] * 2


def test_equal_steps_have_their_own_scores() -> None:
    trace = think(MajorityVote(2), ScriptedPolicy({"": ["=1"]}))
    for step, value in zip(trace.steps[1:], (0.2, 0.7), strict=True):
        step.scores["rm"] = Score(value)
    again = think(BestOfN(2), ReplayPolicy([trace]), ReplayScorer([trace], "rm"))
    assert [s.scores["rm"].value for s in again.steps[1:]] == [0.2, 0.7] and again.chosen == 2
    with pytest.raises(UnknownName, match="Did you mean 'rm'"):
        ReplayScorer([trace], "rn")
    other = think(BestOfN(1), ScriptedPolicy({"": ["=9"]}), ReplayScorer([trace], "rm"))
    assert other.failed == "no branch came to an answer: no score: the stored traces have no rm for this step"


def test_replay_keeps_its_budget() -> None:
    """Five tokens are stored; three buy the first answer, and not the end of the second."""
    stored, problem = two(), question_trace().problem
    trace = asyncio.run(
        solve(problem, MajorityVote(2, early_stopping="decided"), ReplayPolicy([stored]), budget=Budget(tokens=3))
    )
    assert [s.text for s in trace.steps[1:]] == ["=1"] and trace.chosen == 1 and trace.cost.generated_tokens == 2
    with pytest.raises(BudgetExhausted, match="the stored step has 3 tokens, and 2 are allowed"):
        asyncio.run(ReplayPolicy([stored]).generate(question_trace().token_ids(0), Sampling(max_tokens=2), 2))


def test_only_stored_prompts_and_texts_are_encoded() -> None:
    policy, trace = ScriptedPolicy({}), question_trace()
    insert_text(trace, 0, "Wait", policy)
    add_prompt(trace, user_messages("Is it right?"), policy, cites=(0,))
    replay = ReplayPolicy([trace])
    assert replay.encode(user_messages("Q:")).tolist() == trace.steps[0].token_ids.tolist()
    assert replay.encode(user_messages("Is it right?")).tolist() == trace.steps[2].token_ids.tolist()
    assert (
        replay.tokens("Wait").tolist() == trace.steps[1].token_ids.tolist()
        and replay.text(trace.steps[1].token_ids) == "Wait"
    )
    for broken in (
        lambda: replay.encode(user_messages("Else?")),
        lambda: replay.tokens("But"),
        lambda: replay.text(ids([1])),
    ):
        with pytest.raises(UsageError, match="the stored traces have no"):
            broken()


def test_tool_output_is_not_replayed_as_a_sample() -> None:
    trace = question_trace()
    insert_text(trace, 0, "Wait", ScriptedPolicy({}))
    with pytest.raises(UsageError, match="no continuation of this prefix"):
        think(MajorityVote(1), ReplayPolicy([trace]))


def rows() -> list[dict[str, Any]]:
    root = os.environ.get("PONDER_DATA")
    if not root or not Path(root, LOG).exists():
        pytest.skip(f"needs {LOG} in the folder that PONDER_DATA names")
    return [json.loads(line) for line in Path(root, LOG).read_text().splitlines()]


@dataclass(frozen=True)
class Logged:
    """The log's own reading and verdict of each text."""

    preds: Mapping[str, str]
    right: Mapping[str, bool]

    @property
    def name(self) -> str:
        return "logged"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [Score(float(self.right[trace.text(i)])) for i in steps]

    def extract_answer(self, text: str) -> str | None:
        return self.preds[text] or None


def test_faithful_votes_on_the_reward_models_log() -> None:
    """100 MATH problems, 8 samples each with a reward model's score: what the published selections give."""
    log = rows()
    stored = [
        Trace(
            Problem(str(r["idx"]), user_messages(r["question"]), r["gt"]),
            [
                Step(None, r["question"], ids([])),
                *(
                    Step(0, text, ids([]), stop="eos", last=True, scores={"rm": Score(score[0])})
                    for text, score in zip(r["code"], r["pred_score"], strict=True)
                ),
            ],
        )
        for r in log
    ]
    samples = [(t, p, s) for r in log for t, p, s in zip(r["code"], r["pred"], r["score"], strict=True)]
    judge = Logged({t: p for t, p, _ in samples}, {t: s for t, _, s in samples})
    guide = ReplayScorer(stored, "rm")

    def solved(strategy: Any) -> list[Trace]:
        strategy = replace(strategy, sampling=Sampling(max_tokens=20_000))
        result: list[Trace] = []

        async def work() -> None:  # asyncio.run would print what is returned into a message that nobody reads
            problems = [t.problem for t in stored]
            result.extend(await solve_all(problems, strategy, ReplayPolicy(stored), judge, guide=guide))

        asyncio.run(work())
        return result

    def right(strategy: Any) -> int:
        return sum(t.score(t.chosen, "logged") == 1 for t in solved(strategy) if t.chosen is not None)

    ks = (1, 2, 4, 8)
    assert [right(MajorityVote(k)) for k in ks] == [90, 90, 93, 93]
    assert [right(BestOfN(k)) for k in ks] == [90, 93, 93, 94]
    covered = [sum(any(t.score(i, "logged") for i in t.answers()) for t in solved(MajorityVote(k))) for k in ks]
    assert covered == [90, 94, 95, 96]
    assert [right(MajorityVote(k, "score")) for k in ks] == [_weighted(log, k) for k in ks]
    early = solved(MajorityVote(8, early_stopping="decided"))
    assert sum(t.score(t.chosen, "logged") == 1 for t in early if t.chosen is not None) == 93
    assert sum(len(t.steps) - 1 for t in early) < 500, "the same vote with fewer than 500 of its 800 samples"


def _weighted(log: Sequence[Mapping[str, Any]], k: int) -> int:
    """Counted without any of ours: the answer with the largest sum of scores, first seen wins."""
    good = 0
    for row in log:
        sums: dict[str, float] = defaultdict(float)
        for pred, score in list(zip(row["pred"], row["pred_score"], strict=True))[:k]:
            if pred:
                sums[pred] += score[0]
        if sums:
            won = next(p for p in sums if sums[p] == max(sums.values()))
            good += row["score"][row["pred"].index(won)]
    return good
