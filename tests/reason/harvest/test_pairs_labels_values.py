"""Preferences, labels, values and operators, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ponder.filter_report import FilterReport
from ponder.reason.harvest import (
    Provenance,
    answer_pairs,
    labelled_tree,
    labels_from_scores,
    merge_estimates,
    merge_shared_prefixes,
    operator_events,
    operator_supervision,
    outcomes_by_step,
    prefix_values,
    sibling_pairs,
    step_labels,
    without_repeated_prefixes,
)
from ponder.types import Score, Step, ids

O = Provenance("r", 0)  # noqa: E741


def test_pairs_match_right_and_wrong_answers_of_similar_length(grow):
    trace = grow(("4", 1.0), ("long way to 4", 1.0), ("5", 0.0), ("long way to 5", 0.0), ("hm", None))
    funnel = FilterReport()
    rows = [one.row for one in answer_pairs(trace, "accuracy", funnel, O)]
    assert [(r["chosen"], r["rejected"]) for r in rows] == [("4", "5"), ("long way to 4", "long way to 5")]
    assert rows[0]["scores"] == [1.0, 0.0] and rows[0]["prompt"][-1]["content"] == "What is 2 + 2?"
    assert rows[0]["from"]["chosen"] == [0, 1] and rows[0]["from"]["rejected"] == [0, 3]
    assert funnel.stages["judged"] == 4 and funnel.stages["pairs"] == 2


def test_every_wrong_answer_is_used_before_one_repeats(grow):
    trace = grow(("4", 1.0), ("4.", 1.0), ("5", 0.0), ("a long way to nowhere", 0.0))
    rows = [one.row for one in answer_pairs(trace, "accuracy", FilterReport(), O)]
    assert [(r["chosen"], r["rejected"]) for r in rows] == [("4", "5"), ("4.", "a long way to nowhere")]


def test_equal_scores_give_no_pair(grow):
    funnel = FilterReport()
    assert list(answer_pairs(grow(("4", 1.0), ("four", 1.0)), "accuracy", funnel, O)) == []
    assert funnel.dropped["groups that differ"] == {"all answers alike": 1}
    assert list(answer_pairs(grow(("4", 0.6), ("5", 0.3)), "accuracy", FilterReport(), O, margin=0.5)) == []
    (one,) = answer_pairs(grow(("4", 0.6), ("5", 0.3)), "accuracy", FilterReport(), O, margin=0.25)
    assert one.row["chosen"] == "4"
    funnel = FilterReport()
    assert list(answer_pairs(grow(("4", 1.0), ("4", 0.0)), "accuracy", funnel, O)) == []  # a verdict that wavers
    assert funnel.dropped["pairs"] == {"of equal text": 1}


def test_sibling_pairs_continue_to_an_answer(grow):
    trace = grow(
        ("start ", [
            ("good ", [("4", 1.0), ("44", 0.0), ("four", 1.0)]),
            ("bad ", [("5", 0.0), ("four?", 1.0), ("6", 0.0), ("7", 0.0)]),
            ("open ", []),
        ]),
    )  # fmt: skip
    rows = [one.row for one in sibling_pairs(trace, "accuracy", FilterReport(), O, margin=0.4)]
    at_fork = [r for r in rows if r["shared"] == "start "]
    (row,) = at_fork
    assert (row["chosen_step"], row["rejected_step"]) == ("good ", "bad ")
    assert (row["chosen"], row["rejected"]) == ("start good 4", "start bad 5")
    assert row["outcomes"] == pytest.approx([2 / 3, 1 / 4])
    assert all(r["chosen"].startswith(r["shared"] + r["chosen_step"]) for r in rows)
    assert all(r["rejected"].startswith(r["shared"] + r["rejected_step"]) for r in rows)


def test_a_wrong_answer_is_never_chosen(grow):
    """The better step's right answer was cut off: what is left of it is as wrong as the other's."""
    cut = ("4", 1.0, {"stop": "length"})
    trace = grow(("good ", [cut, ("5", 0.0)]), ("bad ", [("6", 0.0)]))
    funnel = FilterReport()
    assert list(sibling_pairs(trace, "accuracy", funnel, O, margin=0.5)) == []
    assert funnel.dropped["answers that differ"] == {"the better one's were cut off": 1}


def ways(*traces, own=False, scorer="accuracy", found=None):
    found = found or [one for t in traces for one in step_labels(t, scorer, FilterReport(), O, own=own)]
    return [one.row for one in without_repeated_prefixes(merge_shared_prefixes(merge_estimates(found, FilterReport())))]


def test_step_labels_have_mean_and_any_and_appear_once(grow):
    trace = grow(("a ", [("b ", [("x", 1.0), ("y", 0.0), ("z", None)]), ("c", 0.0)]), ("", 0.0))
    funnel = FilterReport()
    rows = ways(found=list(step_labels(trace, "accuracy", funnel, O)))
    assert [(r["completions"], r["labels"], r["hard"], r["answers"]) for r in rows] == [
        (["a ", "b ", "x"], [pytest.approx(1 / 3), 1 / 2, 1.0], [True, True, True], [3, 2, 1]),
        (["a ", "b ", "y"], [None, None, 0.0], [None, None, False], [0, 0, 1]),
        (["a ", "c"], [None, 0.0], [None, False], [0, 1]),
    ]  # the undecided answer has none
    lost = {"no answer below them was judged": 1, "nothing was written": 1}
    assert funnel.dropped == {"prefixes with an outcome": lost} and funnel.stages == {"prefixes with an outcome": 5}


def test_labels_of_one_prefix_are_merged(grow):
    a = grow(("s", [("x", 1.0), ("y", 0.0)]))
    b = grow(("s", [("x", 1.0), ("z", 0.0), ("w", 0.0)]))
    rows = ways(a, b)
    assert rows[0]["labels"] == [pytest.approx(2 / 5), 1.0] and rows[0]["answers"] == [5, 2]
    assert [r["labels"] for r in rows[1:]] == [[None, 0.0]] * 3 and rows[0]["hard"] == [True, True]
    few = without_repeated_prefixes(
        merge_shared_prefixes(merge_estimates(step_labels(b, "accuracy", FilterReport(), O), FilterReport()))[1:]
    )
    assert few[0].row["labels"] == [pytest.approx(1 / 3), 0.0], "what is told once is told in what was kept"


def test_step_labels_read_labels_on_steps(grow):
    trace = grow(("a ", [("b ", [("x", 1.0)])]), ("c", 0.0))
    for i, label in ((1, 0.75), (3, 0.0), (4, None)):
        trace.steps[i].scores["label"] = Score(label, "by somebody")
    (row,) = ways(trace, own=True, scorer="label")
    assert (row["completions"], row["labels"], row["hard"]) == (
        ["a ", "b ", "x"], [0.75, None, 0.0], [True, None, False]
    )  # fmt: skip
    assert row["labelled"] == [1, 0, 1] and "answers" not in row
    (joined,) = ways(trace, trace, trace, own=True, scorer="label")
    assert joined["labels"] == [0.75, None, 0.0] and joined["labelled"] == [3, 0, 3]
    both = [
        *step_labels(trace, "label", FilterReport(), O, own=True),
        *step_labels(trace, "accuracy", FilterReport(), O),
    ]
    assert ways(found=both)[0]["labels"] == [pytest.approx(0.875), 1.0, 0.5], "from a run of each kind"
    for step in trace.steps:
        step.logprobs = None  # texts from elsewhere: each is a thought
    assert ways(trace, own=True, scorer="label") == [row]


def test_a_labelled_tree_holds_thoughts_and_nothing_else(grow):
    trace = grow(("ask ", [("", [("so 7", 1.0), ("", 0.0), ("?", None)])]), ("8", 0.0))
    tool = trace.add(Step(1, "[7] ", ids([1])))
    trace.add(Step(tool, "is 9", ids([5]), np.zeros(1, np.float32), "eos", scores={"accuracy": Score(0.0)}))
    trace.add(Step(1, "good?", ids([5]), np.zeros(1, np.float32), "eos", meta=True))
    other = trace.add(Step(None, "merge", ids([5]), cites=(1,)))
    trace.add(Step(other, "7", ids([5]), np.zeros(1, np.float32), "eos", scores={"accuracy": Score(1.0)}))
    tree = labelled_tree(trace, outcomes_by_step(trace, "accuracy"), "label")
    output = [(s.text, s.parent, s.scores["label"].value, s.last) for s in tree.steps]
    assert output == [
        ("What is 2 + 2?", None, pytest.approx(1 / 4), False),
        ("ask ", 0, pytest.approx(1 / 3), True),  # one answer ended here, with nothing more
        ("so 7", 1, 1.0, True),
        ("8", 0, 0.0, True),
        ("[7] is 9", 1, 0.0, True),
    ]
    assert len(labelled_tree(trace, labels_from_scores(trace, "label"), "label").steps) == 1


def test_tool_output_is_no_step_of_its_own(grow):
    trace = grow(("ask ", []))
    tool = trace.add(Step(1, "[7] ", ids([1, 2])))
    trace.add(Step(tool, "so 7", ids([5]), np.zeros(1, np.float32), "eos", scores={"accuracy": Score(1.0)}))
    (row,) = ways(trace)
    assert row["completions"] == ["ask ", "[7] so 7"] and row["labels"] == [1.0, 1.0]
    assert row["from"]["steps"] == [1, 3]


def by_prefix(found):
    return {tuple(f.row["completions"]): f.row for f in found}


def test_values_are_weighted_by_visits(grow):
    trace = grow(("a\n", [("x", 1.0, {"visits": 3}), ("y", 0.0, {"visits": 1})], {"visits": 4}), ("u", [("v", None)]))
    funnel = FilterReport()
    rows = by_prefix(prefix_values(trace, "accuracy", funnel, O))
    assert rows["a",]["value"] == pytest.approx(3 / 4) and rows["a",]["visits"] == 4
    assert rows["a", "x"]["value"] == 1.0 and rows["a", "y"]["value"] == 0.0
    assert set(rows) == {("a",), ("a", "x"), ("a", "y")} and funnel.dropped["prefixes with an outcome"].total() == 2
    assert set(by_prefix(prefix_values(trace, "accuracy", FilterReport(), O, min_visits=3))) == {("a",), ("a", "x")}


def test_estimates_of_one_prefix_are_merged(grow):
    a = grow(("s", [("x", 1.0), ("y", 0.0)]))
    b = grow(("s", [("x", 1.0), ("z", 1.0)]))
    funnel = FilterReport()
    rows = by_prefix(
        merge_estimates([one for t in (a, b) for one in prefix_values(t, "accuracy", FilterReport(), O)], funnel)
    )
    assert rows["s",]["value"] == pytest.approx(3 / 4) and rows["s",]["visits"] == 4
    assert rows["s", "x"]["visits"] == 2 and rows["s", "y"]["value"] == 0.0 and "q" not in rows["s", "x"]
    assert funnel.stages == {"distinct prefixes": 4}


def test_backed_up_values_are_merged_by_visits(grow):
    a = grow(("x", 1.0, {"visits": 3, "value": 0.9}))
    b = grow(("x", 1.0, {"visits": 1, "value": 0.5}))
    (one,) = merge_estimates(
        [one for t in (a, b) for one in prefix_values(t, "accuracy", FilterReport(), O)], FilterReport()
    )
    assert one.row["q"] == pytest.approx(0.8) and one.row["visits"] == 4 and one.row["value"] == 1.0


def test_shared_prefix_values_appear_once(grow):
    trace = grow(("a", [("x", 1.0), ("b", [("y", 0.0), ("z", 1.0)])]), ("w", 0.0), ("", 0.0))
    whole = merge_shared_prefixes(merge_estimates(prefix_values(trace, "accuracy", FilterReport(), O), FilterReport()))
    rows = [one.row for one in without_repeated_prefixes(whole)]
    assert [(r["completions"], r["labels"]) for r in rows] == [
        (["a", "x"], [pytest.approx(2 / 3), 1.0]),
        (["a", "b", "y"], [None, 0.5, 0.0]),
        (["a", "b", "z"], [None, None, 1.0]),
        (["w"], [0.0]),
    ]  # and one that ended at once, which no file of steps can hold
    assert [r["visits"] for r in rows] == [[3, 1], [0, 2, 1], [0, 0, 1], [1]]
    assert without_repeated_prefixes(whole[2:])[0].row["labels"] == [pytest.approx(2 / 3), 0.5, 1.0]
    few = merge_shared_prefixes(list(prefix_values(trace, "accuracy", FilterReport(), O, min_visits=2)))
    assert [(f.row["completions"], f.row["labels"]) for f in few] == [(["a", "b"], [pytest.approx(2 / 3), 0.5])]


def names(trace):
    return [(e["operator"], e["at"], e.get("made", e.get("to"))) for e in operator_events(trace)]


def test_operator_events_of_a_search(grow):
    trace = grow()
    sampled = {"logprobs": np.zeros(1, np.float32)}

    def think(parent, **more):
        return trace.add(Step(parent, "t", ids([1]), **{**sampled, **more}))

    a, b = think(0), think(0)  # 1, 2
    c = think(a)  # 3
    asked = trace.add(Step(c, "good?", ids([1]), meta=True))  # 4
    think(asked, meta=True)  # 5
    d = think(c)  # 6: a meta step is no thought to go back from
    e = think(a)  # 7: back to 1, on the way to 6
    f = think(b)  # 8: over to 2
    tool = trace.add(Step(f, "out", ids([1])))  # 9
    think(tool)  # 10
    merge = trace.add(Step(None, "join", ids([1]), cites=(d, e)))  # 11
    think(merge, stop="eos")  # 12
    trace.add(Step(None, "better", ids([1]), cites=(d,)))  # 13
    trace.steps[d].pruned = "low"
    trace.chosen = 12
    assert names(trace) == [
        ("generate", [0], [1, 2]),
        ("generate", [1], [3]),
        ("evaluate", [3], [4]),
        ("evaluate", [4], [5]),
        ("generate", [3], [6]),
        ("backtrack", [6], 1),
        ("generate", [1], [7]),
        ("select", [7], 2),
        ("generate", [2], [8]),
        ("insert", [8], [9]),
        ("generate", [9], [10]),
        ("aggregate", [6, 7], [11]),
        ("generate", [11], [12]),
        ("refine", [6], [13]),
        ("prune", [6], None),
        ("answer", [12], None),
    ]


def test_operator_gain_is_the_change_of_the_mean(grow):
    trace = grow(("a", [("x", 1.0), ("y", 1.0)]), ("b", 0.0))
    (one,) = operator_supervision(trace, "accuracy", FilterReport(), O)
    assert [(e["operator"], e.get("gain")) for e in one.row["operators"]] == [
        ("generate", pytest.approx(1.0 - 2 / 3)),
        ("generate", pytest.approx(0.0)),
        ("backtrack", None),
        ("generate", pytest.approx(0.0 - 2 / 3)),
    ]
    assert one.row["thoughts"][2] == {"parent": 1, "text": "x"}
    assert one.row["completion"].split("\n\n") == [
        "[generate 0 -> 1]\na", "[generate 1 -> 2 3]\nx\ny", "[backtrack 3 -> 0]", "[generate 0 -> 4]\nb",
    ], "what `ponder sft` learns to write"  # fmt: skip
    funnel = FilterReport()
    assert list(operator_supervision(grow(), "accuracy", funnel, O)) == [] and funnel.stages == {"with an operator": 0}


def test_operator_text_ends_with_the_answer_and_wrong_searches_are_left_out(grow):
    trace = grow(("a", [("x=3", 1.0), ("y=4", 0.0)]))
    for chosen, text, kept in ((2, "x=3", True), (3, "y=4", False)):
        trace.chosen = chosen
        (one,) = operator_supervision(trace, "accuracy", FilterReport(), O)
        assert one.row["completion"].startswith("<think>\n[generate 0 -> 1]\na\n\n[generate 1 -> 2 3]\nx=3\ny=4")
        assert one.row["completion"].endswith(f"\n\n[answer {chosen}]\n</think>\n{text}")
        funnel = FilterReport()
        assert bool(list(operator_supervision(trace, "accuracy", funnel, O, min_score=1.0))) == kept
        assert funnel.stages["with a right answer, or none graded"] == kept
    assert list(operator_supervision(trace, "nobody", FilterReport(), O, min_score=1.0)), "a score that is not there"
