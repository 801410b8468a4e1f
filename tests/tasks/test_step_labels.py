"""Labels in files: every format read, written and read again; what does not fit is named by its line."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import TaskError, UnknownName, UsageError
from ponder.filter_report import FilterReport
from ponder.measure.statistics.verifier_metrics import (
    correct_pairs,
    first_wrong_step,
    fit_binary_temperature,
    fit_categorical_temperature,
    score_first_errors,
)
from ponder.tasks.step_labels import (
    LABEL_SCORE,
    STEP_LABEL_FORMATS,
    detect_format,
    processbench_labels,
    read_labels,
    write_labels,
)
from ponder.tasks.step_labels.labelled_trace import add_labelled_step, new_labelled_trace
from ponder.tasks.step_labels.step_split import split_steps, step_ends
from ponder.types import Ids, Problem, Score, Step, Trace, ids, user_messages

DATA = os.environ.get("PONDER_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="PONDER_DATA is not set")
SAMPLES = {
    "prm800k": "samples_prm800k", "shepherd": "samples_math-shepherd", "omega": "samples_math-aps",
    "omega, tree": "samples_math-aps-tree",
}  # fmt: skip


def sample(name: str) -> Path:
    return Path(DATA or "") / "prm_formats" / f"{SAMPLES[name]}.jsonl"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]


def put(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def content(trace: Trace) -> list[tuple[str, float | None]]:
    return sorted((trace.text(i), trace.score(i, LABEL_SCORE)) for i in range(1, len(trace.steps)))


# the samples as they were published


@needs_data
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_read_written_and_read_again(name: str, tmp_path: Path) -> None:
    format = name.partition(",")[0]
    assert detect_format(rows_of(sample(name))[0], "x") == format
    traces = read_labels(sample(name))
    assert len(traces) == len(rows_of(sample(name))) and all(len(t.steps) > 1 for t in traces)
    write_labels(tmp_path / "again.jsonl", traces, format)
    again = read_labels(tmp_path / "again.jsonl")
    assert [t.problem.messages for t in again] == [t.problem.messages for t in traces]
    for one, two in zip(traces, again, strict=True):
        assert sorted(content(one), key=str) == sorted(content(two), key=str)


@needs_data
def test_math_shepherd_s_own_lines(tmp_path: Path) -> None:
    traces = read_labels(sample("shepherd"))
    write_labels(tmp_path / "again.jsonl", traces, "shepherd")
    assert rows_of(tmp_path / "again.jsonl") == rows_of(sample("shepherd")), "to the letter"
    first = traces[0]
    assert first.problem.question.startswith("Janet pays $40/hour") and first.problem.question.endswith("in a year?")
    assert [first.score(i, LABEL_SCORE) for i in range(1, 6)] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert first.steps[2].text == "Step 2: She spends 40 * 3 = <<40*3=120>>120 on clarinet lessons per week.\n"
    signs = sum(row["label"].count("+\n") + row["label"].endswith("+") for row in rows_of(sample("shepherd")))
    assert signs == sum(1 for t in traces for s in t.steps[1:] if s.scores[LABEL_SCORE].value == 1.0)


@needs_data
def test_prm800k_s_alternatives_and_choices(tmp_path: Path) -> None:
    given_rows, traces = rows_of(sample("prm800k")), read_labels(sample("prm800k"))
    for row, trace in zip(given_rows, traces, strict=True):
        ratings = [c["rating"] for s in row["label"]["steps"] for c in s["completions"] or []]
        right = [{1: 1.0, 0: 1.0, -1: 0.0, None: None}[r] for r in ratings]
        result = [trace.score(i, LABEL_SCORE) for i in range(1, len(trace.steps))]
        assert sorted(map(str, right)) == sorted(str(f) for f in result if f is not None or None in ratings)
        assert [s.scores[LABEL_SCORE].reason for s in trace.steps[1:]].count("neutral") == ratings.count(0)
        assert bool(trace.answers()) == (row["label"]["finish_reason"] == "solution")
        assert trace.problem.answer == row["question"]["ground_truth_answer"]
    write_labels(tmp_path / "again.jsonl", traces, "prm800k")
    for row in given_rows:  # a last round that nobody filled in is not kept
        row["label"]["steps"] = [s for s in row["label"]["steps"] if s["completions"] or s["human_completion"]]
    assert rows_of(tmp_path / "again.jsonl") == given_rows, "times, flags and all"


@needs_data
def test_omega_prefixes_make_the_tree_they_came_from() -> None:
    for row, trace in zip(rows_of(sample("omega")), read_labels(sample("omega")), strict=True):
        question = row["question"]
        assert trace.steps[0].scores[LABEL_SCORE].value == row["reasoning_steps"][0]["mc_value"]
        result = sorted((question + trace.text(i), s.value) for i, s in enumerate(trace.steps))
        assert result == sorted((s["solution_prefix"], s["mc_value"]) for s in row["reasoning_steps"])
        for i in range(1, len(trace.steps)):
            parent = question + trace.text(trace.steps[i].parent or 0)
            mine = question + trace.text(i)
            between = [s["solution_prefix"] for s in row["reasoning_steps"]]
            assert not any(p != mine and mine.startswith(p) and len(p) > len(parent) for p in between)
    tree = read_labels(sample("omega, tree"))[0]
    root = rows_of(sample("omega, tree"))[0]["reasoning_steps"]
    assert len(tree.children(0)) == len(root["children"]) and tree.steps[1].text.startswith(root["children"][0]["text"])


# formats without samples


ROWS: dict[str, dict[str, Any]] = {
    "stepwise": {"prompt": "2+2?", "completions": ["two and two", "is 4"], "labels": [True, 0.25]},
    "pairs": {"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}],
              "chosen": "4", "rejected": "5"},
    "ranked": {"prompt": "2+2?", "completions": ["4", "four", "5"], "scores": [2.0, 1.5, -1.0]},
    "outcomes": {"prompt": "2+2?", "completion": "4", "label": True},
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    traces = read_labels(put(tmp_path / "a.jsonl", ROWS[name], "", ROWS[name]))
    assert len(traces) == 2 and traces[1].problem.id.endswith("a.jsonl:3"), "lines are counted as an editor does"
    assert write_labels(tmp_path / "b.jsonl", traces[:1], name) == 1
    assert rows_of(tmp_path / "b.jsonl") == [ROWS[name]]


def test_what_else_rows_may_look_like(tmp_path: Path) -> None:
    chat = {"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}],
            "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "no"}]}  # fmt: skip
    (trace,) = read_labels(put(tmp_path / "a.jsonl", chat))
    assert [(trace.text(i), trace.score(i, LABEL_SCORE)) for i in trace.answers()] == [("yes", 1.0), ("no", 0.0)]
    (trace,) = read_labels(put(tmp_path / "a.jsonl", {"prompt": "q", "ranked": ["best", "good", "bad"]}))
    assert [trace.score(i, LABEL_SCORE) for i in trace.answers()] == [2.0, 1.0, 0.0]
    assert write_labels(tmp_path / "b.jsonl", [trace], "pairs") == 3, "every two of three"
    (trace,) = read_labels(put(tmp_path / "a.jsonl", {"prompt": "q", "completions": ["a", "b"], "labels": [1, None]}))
    assert trace.score(2, LABEL_SCORE) is None and "nobody rated" in trace.steps[2].scores[LABEL_SCORE].reason
    write_labels(tmp_path / "b.jsonl", [trace], "stepwise")
    assert rows_of(tmp_path / "b.jsonl")[0]["labels"] == [True, None]
    with pytest.raises(TaskError, match="nothing is written"):
        write_labels(tmp_path / "c.jsonl", [trace], "shepherd")
    assert not (tmp_path / "c.jsonl").exists()


# trees of labels


def trace_from_parents(parents: list[tuple[int, str, float | None, bool]]) -> Trace:
    """Steps as (parent, text, label, end); an end is one only where nothing goes on from it."""
    trace = new_labelled_trace("x:1", "Q ", "14")
    for parent, text, label, end in parents:
        add_labelled_step(
            trace, parent % len(trace.steps), text, Score(label, "" if label is not None else "unrated"), last=end
        )
    for i, step in enumerate(trace.steps):
        step.last = step.last and not trace.children(i)
    return trace


def shape(trace: Trace, step: int = 0) -> Any:
    """A tree without the order in which its steps were added."""
    here = trace.steps[step]
    return (
        here.text,
        trace.score(step, LABEL_SCORE),
        here.last,
        sorted((shape(trace, c) for c in trace.children(step)), key=str),
    )


def write_and_read(traces: list[Trace], format: str) -> list[Trace]:
    with tempfile.TemporaryDirectory() as folder:
        write_labels(Path(folder) / "t.jsonl", traces, format)
        return read_labels(Path(folder) / "t.jsonl")


def test_an_answer_that_begins_with_another_is_no_step_after_it() -> None:
    (back,) = write_and_read([trace_from_parents([(0, "1", 0.0, True), (0, "14", 1.0, True)])], "omega")
    assert [(s.text, s.parent, s.last, s.value) for s in back.steps[1:]] == [("1", 0, True, 0.0), ("14", 0, True, 1.0)]


steps_of_trees = st.tuples(
    st.integers(0, 7), st.sampled_from(["1", "14", "4", "a\n", "b\n\n", "\nc"]),
    st.sampled_from([None, 0.0, 0.25, 1.0]), st.booleans(),
)  # fmt: skip


@given(st.lists(steps_of_trees, min_size=1, max_size=9))
def test_a_tree_comes_back_from_omega_as_it_was(steps: list[tuple[int, str, float | None, bool]]) -> None:
    trace = trace_from_parents(steps)
    if all(label is None for _, _, label, _ in steps):
        return
    (back,) = write_and_read([trace], "omega")
    assert shape(back) == shape(trace) and back.problem.answer == "14"


@given(st.lists(steps_of_trees, min_size=1, max_size=9))
def test_each_label_stands_once_and_each_answer_ends(steps: list[tuple[int, str, float | None, bool]]) -> None:
    """Texts that differ, so that each step is known by its prefix."""
    trace = trace_from_parents([(parent, f"s{i}\n", label, end) for i, (parent, _, label, end) in enumerate(steps)])
    labels = {
        trace.text(i): label for i in range(1, len(trace.steps)) if (label := trace.score(i, LABEL_SCORE)) is not None
    }
    if not labels:
        return
    for format, hard in (("prm800k", True), ("stepwise", False)):
        back = write_and_read([trace], format)
        output = [
            (t.text(i), label)
            for t in back
            for i in range(1, len(t.steps))
            if (label := t.score(i, LABEL_SCORE)) is not None
        ]
        assert Counter(output) == Counter((k, float(v >= 0.5) if hard else v) for k, v in labels.items())
    ends = {trace.text(i) for i in trace.answers() if trace.score(i, LABEL_SCORE) is not None}
    rows = write_and_read([trace], "prm800k")
    last = {t.text(i): t.score(i, LABEL_SCORE) for t in rows for i in t.answers()}
    assert ends <= last.keys() and all(last[text] is not None for text in ends)
    assert last.keys() <= {trace.text(i) for i in trace.answers()}, "nothing else ends"


def test_why_a_solution_is_finished(tmp_path: Path) -> None:
    trace = trace_from_parents([(0, "a\n", 1.0, False), (1, "right\n", 1.0, True), (1, "wrong\n", 0.0, True),
                   (0, "b\n", 1.0, False), (4, "error\n", 0.0, False), (0, "c\n", 1.0, False),
                   (6, "open\n", 1.0, False)])  # fmt: skip
    assert write_labels(tmp_path / "p.jsonl", [trace], "prm800k") == 4
    labels = [row["label"] for row in rows_of(tmp_path / "p.jsonl")]
    assert [x["finish_reason"] for x in labels] == ["solution", "found_error", "found_error", "give_up"]
    texts = [[[(c["text"], c["rating"]) for c in s["completions"]] for s in x["steps"]] for x in labels]
    assert texts[0] == [[("a", 1), ("b", 1), ("c", 1)], [("right", 1)]]
    assert texts[1:] == [
        [[("a", None)], [("wrong", -1)]],
        [[("b", None)], [("error", -1)]],
        [[("c", None)], [("open", 1)]],
    ]
    assert [x["steps"][-1]["chosen_completion"] for x in labels] == [0, 0, None, None]


def test_questions_about_a_step_and_other_prompts_are_not_written(tmp_path: Path) -> None:
    trace = trace_from_parents([(0, "a\n", 1.0, False), (1, "b\n", 0.5, True)])
    trace.add(Step(2, "is it good?", ids([]), meta=True))
    quoting = trace.add(Step(None, "Better?", ids([]), cites=(2,)))
    add_labelled_step(trace, quoting, "c\n", Score(1.0), last=True)
    given_up = add_labelled_step(trace, 0, "d\n", Score(0.0))
    trace.steps[given_up].pruned = "low"
    for format in ("stepwise", "omega", "prm800k", "shepherd"):
        result = {t.text(i).strip() for t in write_and_read([trace], format) for i in t.leaves()}
        assert {x.replace("Step 1: ", "").replace("Step 2: ", "") for x in result} == {"a\nb", "d"}, format
    trace.steps[given_up].text = "\n"
    with pytest.raises(TaskError, match="step 6 has no text"):
        write_labels(tmp_path / "x.jsonl", [trace], "omega")


def test_a_tree_that_is_too_deep_says_so(tmp_path: Path) -> None:
    trace = trace_from_parents([(i, f"{i}\n", 1.0, False) for i in range(400)])
    assert shape(write_and_read([trace], "omega")[0]) == shape(trace)
    add_labelled_step(trace, 400, "401\n", Score(1.0))
    with pytest.raises(TaskError, match="401 steps are too deep a tree: write another format"):
        write_labels(tmp_path / "x.jsonl", [trace], "omega")
    assert not list(tmp_path.iterdir()) and write_labels(tmp_path / "x.jsonl", [trace], "stepwise") == 1


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=20)
texts = texts.filter(lambda said: bool(said.strip()))


@given(texts, st.lists(st.tuples(texts, st.sampled_from([True, False, 0.5])), min_size=1, max_size=6))
def test_any_step_text_survives_the_round_trip(question: str, steps: list[tuple[str, Any]]) -> None:
    row = {"prompt": question, "completions": [s for s, _ in steps], "labels": [label for _, label in steps]}
    with tempfile.TemporaryDirectory() as folder:
        write_labels(Path(folder) / "b.jsonl", read_labels(put(Path(folder) / "a.jsonl", row)), "stepwise")
        assert rows_of(Path(folder) / "b.jsonl") == [row]


BAD: list[tuple[str, Any, str]] = [
    ("stepwise", {"prompt": "q", "completions": ["a", "b"], "labels": [True]}, "2 steps and 1 labels"),
    ("stepwise", {"prompt": "q", "completions": [], "labels": []}, "there are no steps"),
    ("stepwise", {"prompt": "q", "completions": ["a"], "labels": [1.5]}, "a label is 1.5"),
    ("stepwise", {"prompt": "q", "completions": ["a"], "labels": ["good"]}, "a label is 'good'"),
    ("stepwise", {"prompt": "q", "completions": ["a"], "labels": [math.nan]}, "a label is nan"),
    ("stepwise", {"prompt": "q", "completions": [None], "labels": [1]}, "a completion is null"),
    ("stepwise", {"prompt": None, "completions": ["a"], "labels": [1]}, "the prompt is null"),
    ("stepwise", {"prompt": "q", "completions": "abc", "labels": [1]}, "'completions' is str, not a list"),
    ("stepwise", {"prompt": "q", "labels": [1]}, "the column 'completions' is missing"),
    ("pairs", {"prompt": "q", "chosen": "a", "rejected": "a"}, "the chosen answer is the rejected one"),
    ("ranked", {"prompt": "q", "completions": ["a", "b"], "scores": [1, 1]}, "one is better than another"),
    ("ranked", {"prompt": "q", "completions": ["a", "b"], "scores": [1]}, "2 steps and 1 labels"),
    ("outcomes", {"prompt": "q", "completion": "a", "label": 7}, "a label is 7"),
    ("shepherd", {"input": "q Step 1: a ки\nStep 2: b ки", "label": "q Step 1: a +\nStep 2: b"}, "differs from"),
    ("shepherd", {"input": "q Step 1: a ки\nStep 2: b", "label": "q Step 1: a +\nStep 2: b"}, "has no mark after it"),
    ("shepherd", {"input": "q Step 1: a ки", "label": "q Step 1: a + -"}, "goes on after step 1"),
    ("shepherd", {"input": "q Step 1: a", "label": "q Step 1: a +"}, "has no mark"),
    ("shepherd", {"input": "q a ки", "label": "q a +"}, "where the steps begin"),
    ("omega", {"question": "q", "reasoning_steps": [{"solution_prefix": "other", "mc_value": 1}]}, "does not begin"),
    ("omega", {"question": "q", "reasoning_steps": [{"solution_prefix": "qa", "mc_value": 2}]}, "mc_value is 2"),
    ("omega", {"question": "q", "reasoning_steps": []}, "there are no steps"),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": [
        {"completions": [{"text": "a", "rating": 2}], "chosen_completion": 0}]}}, "is rated 2"),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": [
        {"completions": [{"text": "a", "rating": 1}], "chosen_completion": 3}]}}, "chooses completion 3"),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": [
        {"completions": [{"text": "a", "rating": 1}], "chosen_completion": None}] * 2}}, "nothing was chosen"),
    ("prm800k", {"question": {"problem": "q"}, "label": "good"}, "'label' is str, not an object with 'steps'"),
    ("prm800k", {"question": {"text": "q"}, "label": {"steps": [
        {"completions": [{"text": "a", "rating": 1}]}]}}, "'problem' is missing in 'question', which has text"),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": [
        {"completions": [{"text": " ", "rating": 1}], "chosen_completion": 0}]}}, "has a label and no text"),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": [7]}}, "malformed"),
    ("stepwise", {"prompt": "q", "completions": ["a", ""], "labels": [1, 1]}, "a completion has a label and no text"),
    ("stepwise", {"prompt": "q"}, "the columns 'completions', 'labels' are missing, which stepwise rows have; found"),
    ("stepwise", {"prompt": [{"content": "q"}], "completions": ["a"], "labels": [1]}, "'role' is missing in a message"),
    ("shepherd", {"input": "q Step 1: a ки\n ки", "label": "q Step 1: a +\n +"}, "a step has a label and no text"),
    ("omega", {"question": "q", "reasoning_steps": {"mc_value": 1}}, "'children' is missing in the tree"),
    ("omega", {"question": "q", "reasoning_steps": {"children": [{"text": "a", "mc_value": 1}]}},
     "'children' is missing in a node of the tree, which has mc_value, text"),
    ("omega", {"question": "q", "reasoning_steps": [{"prefix": "qa", "mc_value": 1}]},
     "'solution_prefix' is missing in a prefix, which has mc_value, prefix"),
    ("omega", {"question": "q", "reasoning_steps": [{"solution_prefix": "q ", "mc_value": 1}]}, "label and no text"),
    ("ranked", {"prompt": "q", "completions": ["a", "b"]}, "'scores' is missing in the row"),
    ("stepwise", "oops", "is not JSON"),
    ("stepwise", "[1]", "is not a JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "why"), BAD, ids=[why[:30] for *_, why in BAD])
def test_a_bad_row_is_named_by_its_line(name: str, row: Any, why: str, tmp_path: Path) -> None:
    good: dict[str, Any] = {
        **ROWS,
        "shepherd": {"input": "q Step 1: a ки", "label": "q Step 1: a +"},
        "omega": {"question": "q", "reasoning_steps": [{"solution_prefix": "qa", "mc_value": 1}]},
        "prm800k": {"question": {"problem": "q"}, "label": {"steps": [
            {"completions": [{"text": "a", "rating": 1}], "chosen_completion": 0}], "finish_reason": "solution"}},
    }  # fmt: skip
    path = put(tmp_path / "a.jsonl", good[name], row)
    with pytest.raises(TaskError, match=rf"a\.jsonl, line 2:? .*{why}.*leave them out: skip_bad"):
        read_labels(path, name)
    with pytest.warns(UserWarning, match="1 of 2 rows were left out"):
        assert len(read_labels(path, name, skip_bad=True)) == 1
    funnel = FilterReport()
    assert len(read_labels(path, name, skip_bad=True, funnel=funnel)) == 1 == funnel.stages["rows that can be used"]
    assert funnel.dropped["rows that can be used"].total() == 1
    with pytest.raises(TaskError, match=r"no row of .* can be used"):
        read_labels(put(path, row), name, skip_bad=True)


@pytest.mark.parametrize("format", ["stepwise", "outcomes", "omega", "shepherd", "prm800k"])
def test_rank_scores_are_not_written_as_labels(format: str, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"prompt": "Q", "completions": ["a", "b", "a"], "scores": [1, 2, -1]}')
    traces = read_labels(tmp_path / "r.jsonl")
    with pytest.raises(TaskError, match=r"a score of -?\d is no share"):
        write_labels(tmp_path / "out.jsonl", traces, format)
    assert not list(tmp_path.glob("out*"))
    write_labels(tmp_path / "out.jsonl", traces, "pairs")
    assert len(read_labels(tmp_path / "out.jsonl")) == 2, "an answer is not better than itself"


def test_lone_surrogate_survives_the_round_trip(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"prompt": "Q", "completion": "a\\ud800", "label": true}')
    traces = read_labels(tmp_path / "r.jsonl")
    write_labels(tmp_path / "out.jsonl", traces, "outcomes")
    assert read_labels(tmp_path / "out.jsonl")[0].text(1) == traces[0].text(1) == "a\ud800"


@pytest.mark.parametrize("row", [
    {"prompt": "Q", "completion": "a", "label": 10**400}, {"prompt": "Q", "completions": ["a"], "labels": [10**400]},
    {"prompt": "Q", "completions": ["a", "b"], "scores": [1, 10**400]},
])  # fmt: skip
def test_a_number_beyond_all_numbers_is_named(row: Any, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskError, match="line 1"):
        read_labels(tmp_path / "r.jsonl")


def test_bad_files_are_named(tmp_path: Path) -> None:
    for text, why in (("", "holds no rows"), ("{", "line 1 is not JSON"), ("[1]", "line 1 is not a JSON object")):
        with pytest.raises(TaskError, match=why):
            read_labels(put(tmp_path / "a.jsonl", text))
    marked = tmp_path / "bom.jsonl"
    marked.write_text("\ufeff" + json.dumps(ROWS["pairs"]), "utf-8")
    assert len(read_labels(marked)) == 1, "a byte order mark is no text"
    late = read_labels(
        put(tmp_path / "a.jsonl", "oops", {"prompt": "1"}, ROWS["pairs"]), skip_bad=True, funnel=FilterReport()
    )
    assert len(late) == 1, "the format is that of the first row that has one"
    for row, near in (
        ({"prompt": 1, "completions": 2}, "stepwise also needs labels; ranked also needs scores"),
        ({"question": 1, "answer": 2}, "prm800k also needs label; omega also needs reasoning_steps"),
        ({"input": 1}, "shepherd also needs label"),
    ):
        with pytest.raises(TaskError, match=rf"of no known format \({near}\)"):
            read_labels(put(tmp_path / "a.jsonl", row))
    with pytest.raises(TaskError, match="cannot read"):
        read_labels(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(TaskError, match="not UTF-8"):
        read_labels(tmp_path / "b.jsonl")
    with pytest.raises(TaskError, match=r"columns a, b, which are of no known format .*stepwise: prompt, completions"):
        read_labels(put(tmp_path / "a.jsonl", {"b": 1, "a": 2}))
    with pytest.raises(UnknownName, match="shepherd"):
        read_labels(put(tmp_path / "a.jsonl", ROWS["pairs"]), "shepard")
    assert set(ROWS) < set(STEP_LABEL_FORMATS)


# ProcessBench


@needs_data
def test_processbench_and_the_oracle() -> None:
    for part, wrong, total in (("gsm8k", 207, 400), ("math", 594, 1000)):
        traces = processbench_labels.read_processbench(part)
        labels = [t.problem.tags["first_wrong"] for t in traces]
        assert len(traces) == total and sum(label >= 0 for label in labels) == wrong
        output = [[t.score(i, LABEL_SCORE) for i in range(1, len(t.steps))] for t in traces]
        result = [first_wrong_step([1.0 if x is None else x for x in steps]) for steps in output]
        assert score_first_errors(result, labels).f1 == 1.0, "labels are their own oracle"
        nothing = score_first_errors([-1] * total, labels)
        assert (nothing.error_accuracy, nothing.correct_accuracy, nothing.f1) == (0.0, 1.0, 0.0)


def test_f1_is_the_harmonic_mean_of_both_accuracies() -> None:
    """Two of four first errors found, three of four right solutions let pass: 2 * .5 * .75 / 1.25."""
    result = score_first_errors([0, 2, 1, -1, -1, -1, -1, 3], [0, 2, 2, 1, -1, -1, -1, -1])
    assert (result.error_accuracy, result.correct_accuracy) == (0.5, 0.75) and result.f1 == pytest.approx(0.6)
    with pytest.raises(UsageError, match="with an error and solutions without"):
        score_first_errors([0], [0])
    with pytest.raises(UsageError, match="do not match"):
        score_first_errors([0], [0, 1])


def test_processbench_s_bad_rows(tmp_path: Path) -> None:
    row = {"problem": "q", "steps": ["a", "b"], "label": 1}
    path = tmp_path / "part.json"
    path.write_text(json.dumps([row, row]))
    (trace, _) = processbench_labels.read_processbench(str(path))
    assert [trace.score(i, LABEL_SCORE) for i in (1, 2)] == [1.0, 0.0]
    path.write_text(json.dumps(row | {"label": -1}) + "\n")
    assert [processbench_labels.read_processbench(str(path))[0].score(i, LABEL_SCORE) for i in (1, 2)] == [1.0, 1.0], (
        "JSONL too"
    )
    for label in (2, -2, True, None, "0"):
        path.write_text(json.dumps([row, row | {"label": label}]))
        with pytest.raises(TaskError, match="solution 2: the label does not match the steps"):
            processbench_labels.read_processbench(str(path))
    path.write_text(json.dumps([{"steps": ["a"], "label": 0}]))
    with pytest.raises(TaskError, match="solution 1: 'problem' is missing in the solution, which has label, steps"):
        processbench_labels.read_processbench(str(path))
    path.write_text(json.dumps([{"problem": "q", "label": 0}]))
    with pytest.raises(TaskError, match="'steps' is missing in the solution, which has label, problem"):
        processbench_labels.read_processbench(str(path))
    with pytest.raises(TaskError, match="parts are gsm8k"):
        processbench_labels.read_processbench("gsm9k")


# numbers


def test_first_wrong() -> None:
    steps = [0.9, 0.4, 0.8]
    assert first_wrong_step(steps) == 1 and first_wrong_step(steps, 0.3) == -1


def test_pairs_right_counts_all_pairs() -> None:
    assert correct_pairs([3.0, 1.0, 2.0], [2.0, 1.0, 0.0]) == (2.0, 3)
    assert correct_pairs([1.0, 1.0], [0.0, 1.0]) == (0.5, 1) and correct_pairs([1.0, 2.0], [1.0, 1.0]) == (0.0, 0)


def test_a_temperature_undoes_what_was_too_sure() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=20_000) * 2
    y = (rng.random(20_000) < 1 / (1 + np.exp(-z))).astype(float)
    assert fit_binary_temperature(3 * z, y) == pytest.approx(3.0, rel=0.05)
    assert fit_binary_temperature(z / 2, y) == pytest.approx(0.5, rel=0.05)
    assert fit_binary_temperature(2.5 * z, 1 / (1 + np.exp(-z))) == pytest.approx(2.5, rel=1e-3), (
        "soft labels are enough"
    )
    assert fit_binary_temperature([5.0] * 30, [1.0] * 30) == 1.0 == fit_binary_temperature([1.0, -1.0], [0.0, 1.0]), (
        "nothing to say"
    )
    assert fit_binary_temperature(z, rng.integers(0, 2, 20_000)) == pytest.approx(10.0, rel=1e-3), (
        "noise: as warm as may be"
    )
    logits = rng.normal(size=(20_000, 4)) * 2
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert fit_categorical_temperature(4 * logits, p) == pytest.approx(4.0, rel=1e-3)


# cuts


def spell(tokens: Ids) -> str:
    """Tokens are letters; 1000 and more are words of several."""
    words = {1000: "ab\n", 1001: "\n\n", 1002: "c\nd", 1003: "<eos>", 1004: "к", 1005: "и"}
    return "".join(words.get(t, chr(t)) for t in tokens.tolist())


def tokens(*parts: str | int) -> Ids:
    return ids(t for p in parts for t in ([p] if isinstance(p, int) else [ord(c) for c in p]))


@pytest.mark.parametrize(
    ("given_tokens", "expected"),
    [
        (tokens("ab\ncd"), [3, 5]),
        (tokens("ab"), [2]),
        (tokens("ab\n"), [3]),
        (tokens("a\n\nb"), [2, 4]),
        (tokens("\n\na\nb"), [4, 5]),
        (tokens("a", 1001, "b"), [2, 3]),
        (tokens(1000, 1002, "x"), [1, 2, 3]),
        (tokens("a\n \n"), [4]),
        (ids([]), []),
    ],
)
def test_a_cut_falls_after_the_token_that_completes_a_line(given_tokens: Ids, expected: list[int]) -> None:
    assert step_ends(given_tokens, spell) == expected


def test_a_mark_of_several_tokens_and_an_end() -> None:
    assert step_ends(tokens("a", 1004, 1005, "b", 1004, "c"), spell, "ки") == [3, 6]
    assert step_ends(tokens("a\n", 1003), spell, ended=True) == [3], "an end token is no piece of its own"
    assert step_ends(tokens("a\nb", 1003), spell, ended=True) == [2, 4]
    assert step_ends(tokens("a\n", 1003), spell) == [2, 3]
    with pytest.raises(UsageError, match="no characters"):
        step_ends(tokens("a"), spell, "")


@given(st.text(st.sampled_from("ab \n"), max_size=40), st.sampled_from(["\n", "\n\n", "ab"]))
def test_split_pieces_concatenate_to_the_step(text: str, separator: str) -> None:
    cuts = step_ends(tokens(text), spell, separator)
    pieces = [text[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    assert "".join(pieces) == text and cuts == sorted(set(cuts))
    if len(pieces) > 1:
        assert all(piece.strip() for piece in pieces)
        assert all(separator in piece for piece in pieces[:-1])
        assert all(piece.endswith(separator) or not piece[len(piece.rstrip()) :].strip() for piece in pieces[:-1])


def test_split_keeps_tokens_notes_scores_and_graph() -> None:
    trace = Trace(Problem("p", user_messages("?")), [Step(None, "?", ids([7]))], chosen=2)
    text = tokens("a\nb\nc", 1003)
    step = Step(0, "a\nb\nc", text, np.arange(6, dtype=np.float32), "eos", 4, {"gold": Score(1.0)}, 5, 0.5)
    step.notes["entropy"] = np.arange(6, dtype=np.float32) * 2
    trace.add(step)
    trace.add(Step(1, "tool", ids([3, 4]), cites=(1,)))
    out = split_steps(trace, spell)
    assert [s.text for s in out.steps] == ["?", "a\n", "b\n", "c", "tool"] and [s.parent for s in out.steps] == [
        None, 0, 1, 2, 3,
    ]  # fmt: skip
    assert np.array_equal(np.concatenate([s.token_ids for s in out.steps[1:4]]), text)
    assert np.array_equal(np.concatenate([s.logprobs for s in out.steps[1:4]]), step.logprobs)  # type: ignore[misc]
    assert np.array_equal(np.concatenate([s.notes["entropy"] for s in out.steps[1:4]]), step.notes["entropy"])
    assert [s.stop for s in out.steps[1:4]] == ["stop", "stop", "eos"] and [s.version for s in out.steps[1:4]] == [
        4
    ] * 3
    assert out.steps[3].scores == {"gold": Score(1.0)} and not out.steps[1].scores
    assert (out.steps[3].visits, out.steps[3].value) == (5, 0.5) and out.steps[4].cites == (3,) and out.chosen == 4
    assert out.answers() == [] and out.text(4) == "a\nb\nctool"
    assert len(trace.steps) == 3, "the trace itself stays as it is"
