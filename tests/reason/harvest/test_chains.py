"""What came of each thought, which answers are imitated, and which of a problem's are kept."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.filter_report import FilterReport
from ponder.reason.harvest import (
    HarvestedRow,
    Provenance,
    answer_steps,
    branch_trace,
    deduplicate_and_limit,
    harvest_chains,
    outcomes_by_step,
    pick_for_problem,
    training_tokens,
)
from ponder.reason.harvest.harvested_row import shingles, similarity
from ponder.types import Problem, Score, Step, Trace, ids, user_messages


def test_outcomes_by_step_equal_hand_counts(grow):
    trace = grow(
        ("a", [("b", 1.0), ("c", 0.0), ("d", [("e", 1.0), ("f", None)])]),
        ("g", [("h", "unscored")]),
        ("i", 0.0),
    )
    result = {trace.steps[i].text: o for i, o in enumerate(outcomes_by_step(trace, "accuracy"))}
    assert result["What is 2 + 2?"].mean == pytest.approx(2 / 4)
    assert result["a"].mean == pytest.approx(2 / 3) and result["d"].mean == 1.0
    assert result["g"].mean is None and result["h"].best is None and result["f"].mean is None  # unknown is not zero
    assert result["i"].mean == 0.0 and result["i"].best == 0.0


def test_outcomes_are_weighted_by_visits(grow):
    trace = grow(("a", [("b", 1.0, {"visits": 3}), ("c", 0.0, {"visits": 1}), ("d", 0.0)], {"visits": 5}))
    assert outcomes_by_step(trace, "accuracy", visits=True)[1].mean == pytest.approx(3 / 4)
    assert outcomes_by_step(trace, "accuracy")[1].mean == pytest.approx(1 / 3)


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_outcomes_equal_a_plain_recursion(seed):
    rng = random.Random(seed)
    trace = Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([1]))])
    for _ in range(rng.randint(1, 25)):
        parent = rng.randrange(len(trace.steps))
        if trace.steps[parent].done:
            continue
        step = Step(parent, "x", ids([1]), np.zeros(1, np.float32), rng.choice(["eos", "stop", "length"]))
        if rng.random() < 0.8:
            step.scores["s"] = Score(rng.choice([0.0, 0.5, 1.0, None]))
        step.visits, step.last = rng.randint(0, 3), rng.random() < 0.2
        trace.add(step)

    def below(i):
        """Every judged answer under a step, by going down."""
        step, own = trace.steps[i], []
        if step.done and not trace.children(i) and (score := trace.score(i, "s")) is not None:
            tried = [k for k in trace.children(step.parent) if trace.steps[k].last and not trace.steps[k].visits]
            tried = [k for k in tried if not trace.children(k) and trace.score(k, "s") is not None]
            own = [(score, 1 / len(tried) if i in tried else step.visits)]
        return own + [leaf for c in trace.children(i) for leaf in below(c)]

    searched = any(step.visits for step in trace.steps)
    for i, (plain, visited) in enumerate(
        zip(outcomes_by_step(trace, "s"), outcomes_by_step(trace, "s", visits=True), strict=True)
    ):
        leaves = below(i)
        assert plain.mean == (pytest.approx(np.mean([s for s, _ in leaves])) if leaves else None)
        weights = [v if searched else 1 for _, v in leaves]
        wanted = np.average([s for s, _ in leaves], weights=weights) if sum(weights) else None
        assert visited.mean == (None if wanted is None else pytest.approx(wanted))


def test_answer_with_follow_up_question_is_still_an_answer(grow):
    trace = grow(("a", 1.0), ("b", 0.0))
    asked = trace.add(Step(1, "Is it right?", ids([1]), meta=True))
    trace.add(Step(asked, "yes", ids([1]), np.zeros(1, np.float32), "eos", meta=True))
    assert answer_steps(trace) == [1, 2]
    trace.steps[2].pruned = "low score"
    assert answer_steps(trace) == [1, 2] and trace.answers() == []  # a pruned answer was given nonetheless


def test_harvest_chains_fills_the_filter_report(grow):
    trace = grow(
        ("Two and two. ", [("It is 4", 1.0), ("It is 5", 0.0)]),
        ("4", 1.0, {"stop": "length"}),
        ("four", None),
        ("fo", "unscored"),
    )
    prompt = trace.add(Step(None, "Improve: 5", ids([7]), cites=(3,)))
    trace.add(Step(prompt, "4!", ids([1]), np.zeros(1, np.float32), "eos", scores={"accuracy": Score(1.0)}))
    funnel = FilterReport()
    (one,) = harvest_chains(trace, "accuracy", funnel, Provenance("runs/a", 7))
    assert one.row["messages"] == [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "Two and two. It is 4"},
    ]
    assert one.row["from"] == {"run": "runs/a", "at": 7, "problem": "p/0", "steps": [0, 1, 2]}
    assert one.size == one.row["tokens"] == len("Two and two. It is 4") + 1
    assert funnel.stages == {
        "answers": 6, "to the question itself": 5, "ended by themselves": 4, "judged": 2, "right": 1,
    }  # fmt: skip
    assert funnel.dropped["judged"] == {"undecided: timed out": 1, "never scored": 1}
    assert list(harvest_chains(trace, "accuracy", FilterReport(), Provenance(), max_answer_tokens=5)) == []
    again = trace.add(Step(None, "What is 2 + 2? Think step by step.", ids([7])))
    trace.add(Step(again, "4.", ids([1]), np.zeros(1, np.float32), "eos", scores={"accuracy": Score(1.0)}))
    assert [c.text for c in harvest_chains(trace, "accuracy", FilterReport(), Provenance())] == [
        "Two and two. It is 4",
        "4.",
    ]


def test_single_chain_keeps_its_token_ids(grow):
    trace = grow(("ab", [("c", 0.0), ("de", 1.0)]))
    trace.add(Step(1, "tool", ids([9, 9])))
    trace.add(Step(4, "f", ids([8]), np.zeros(1, np.float32), "eos", cites=(2,)))
    alone = branch_trace(trace, 5)
    assert [s.parent for s in alone.steps] == [None, 0, 1, 2] and alone.steps[3].cites == ()
    assert alone.token_ids(3).tolist() == trace.token_ids(5).tolist()
    output = training_tokens(alone)
    assert output["token_ids"] == [*map(ord, "ab"), 9, 9, 8] and output["sampled"] == [1, 1, 0, 0, 1]
    assert output["learned"] == output["sampled"] and training_tokens(alone, [2])["learned"] == [1, 1, 1, 1, 1]
    assert output["prompt_ids"] == trace.steps[0].token_ids.tolist()
    hinted = trace.add(Step(None, "The answer is 4. Why?", ids([7, 7])))
    trace.add(Step(hinted, "so", ids([6]), np.zeros(1, np.float32), "eos"))
    assert branch_trace(trace, 7).token_ids(1).tolist() == [*trace.steps[0].token_ids, 6]  # the hint is gone
    assert trace.steps[5].parent == 4 and trace.steps[5].cites == (2,)  # the trace is as it was


def found(problem, text, size=1):
    return HarvestedRow(problem, text, size, {"text": text})


def test_duplicates_and_surplus_rows_are_dropped():
    funnel = FilterReport()
    given_ = [found("a", "x y", 3), found("a", "X  y", 1), found("b", "x y", 1), found("a", "z", 2), found("a", "w", 9)]
    kept = deduplicate_and_limit(given_, funnel, 2, "shortest")
    assert [(f.problem, f.text) for f in kept] == [("a", "z"), ("a", "x y"), ("b", "x y")]
    assert funnel.stages == {"unique": 4, "kept": 3}
    assert funnel.dropped == {"unique": {"said before": 1}, "kept": {"beyond 2 of a problem": 1}}
    assert [f.text for f in deduplicate_and_limit(given_, FilterReport(), None, "first", exact=True)] == [
        "x y",
        "X  y",
        "z",
        "w",
        "x y",
    ]


def test_diverse_selection_takes_the_least_similar():
    same = [found("a", f"we add two and two to get four so {n}", n) for n in (5, 6, 7)]
    other = found("a", "counting on fingers gives another way entirely here", 50)
    assert pick_for_problem([*same, other], 2, "diverse") == [same[0], other]
    assert pick_for_problem([*same, other], 2, "shortest") == same[:2]
    assert pick_for_problem([other, *same], 1, "first") == [other]


TEXTS = st.lists(st.sampled_from("abc"), min_size=4, max_size=9).map(" ".join)


@given(st.lists(TEXTS, min_size=1, max_size=8, unique=True), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_each_diverse_pick_is_farthest_from_earlier_picks(texts, count):
    group = [found("p", t, len(t)) for t in texts]
    taken = pick_for_problem(group, count, "diverse")
    assert len(taken) == min(count, len(group)) == len({id(t) for t in taken})
    if len(group) <= count:
        return
    for n in range(1, len(taken)):
        before, rest = taken[:n], [g for g in group if not any(g is t for t in taken[:n])]
        nearest = {g.text: max(similarity(shingles(g.text), shingles(b.text)) for b in before) for g in rest}
        assert nearest[taken[n].text] == min(nearest.values())


def test_similarity_is_jaccard():
    a, b = shingles("one two three four"), shingles("one two three five")
    assert similarity(a, b) == pytest.approx(1 / 3)  # of (1 2 3), (2 3 4), (2 3 5) both have the first
    assert similarity(a, a) == 1.0 and similarity(a, shingles("x")) == 0.0
    assert all(len(set(s)) == 3 for s in a) and list(itertools.chain(*shingles("x"))) == ["x"]
