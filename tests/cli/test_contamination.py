"""`ponder contamination` on what ponder itself writes, and on a public set: copies of questions are found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.filter_report import FilterReport
from ponder.measure.diagnostics.contamination import find_contamination, normalized_words
from ponder.pipelines.collect import Collect
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.harvest import Harvest
from ponder.protocols import Task
from ponder.runs import Run
from ponder.runs.data_files import write_jsonl
from ponder.tasks import GSM8K, Addition
from ponder.types import Problem, Score, Step, Trace, ids, prompt_trace

EVERY = [("chains", "stepwise"), ("journeys", "stepwise"), ("pairs", "stepwise"), ("siblings", "stepwise"),
         ("labels", "stepwise"), ("labels", "prm800k"), ("labels", "shepherd"), ("labels", "omega"),
         ("values", "stepwise"), ("verdicts", "stepwise"), ("rationales", "stepwise")]  # fmt: skip


def solved(problem: Problem, answers: int = 3) -> Trace:
    trace = prompt_trace(problem, ids(map(ord, problem.question)))
    for i in range(answers):
        text = f"answer number {i}" + " wrong" * (i % 2)
        likely = np.full(len(text), -1.0, np.float32)
        trace.add(Step(0, text, ids(map(ord, text)), likely, "eos", scores={"seen": Score(1.0 - i % 2)}))
    return trace


def run_of(folder: Path, task: Task, problems: Sequence[Problem], answers: int = 3) -> Path:
    with Run(folder, Evaluate(task) if problems[0] in task.test else Collect(task)) as opened:
        opened.write_traces(0, [solved(p, answers) for p in problems])
    return folder


def told(ponder: Any, train: Path | str, asked: Path | str) -> dict[str, Any]:
    output = ponder("contamination", train, asked, "--json")
    assert output.code == 0, output.err
    return json.loads(output.out)


@pytest.mark.parametrize(("what", "format"), EVERY)
def test_every_kind_of_harvest(ponder, tmp_path: Path, what: str, format: str) -> None:
    """Of 11 copied test questions all are found, and of as many training questions none."""
    task = Addition()
    for side, problems in (("test", task.test[:11]), ("train", task.train[:11])):
        run = run_of(tmp_path / f"run-{side}", task, problems)
        job = Harvest((str(run),), what, format=format, scorer="seen", include_held_out=True)  # type: ignore[arg-type]
        write_jsonl(tmp_path / f"{side}.jsonl", job.rows(FilterReport()))
    result = told(ponder, tmp_path / "test.jsonl", "addition")
    assert {o["problem"] for o in result["flagged"]} == {p.id for p in task.test[:11]}
    assert told(ponder, tmp_path / "train.jsonl", "addition")["flagged"] == []


def test_runs_are_read_on_both_sides(ponder, tmp_path: Path) -> None:
    task = Addition()
    test, train = run_of(tmp_path / "t", task, task.test[:3]), run_of(tmp_path / "n", task, task.train[:3])
    assert told(ponder, test, test)["whole"] == 3 and told(ponder, test, "addition")["whole"] == 3
    assert told(ponder, train, test)["whole"] == 0
    with Run(tmp_path / "h", Harvest((str(test),), scorer="seen", include_held_out=True)):
        pass
    write_jsonl(
        tmp_path / "h" / "data.jsonl", Harvest((str(test),), scorer="seen", include_held_out=True).rows(FilterReport())
    )
    assert told(ponder, tmp_path / "h", "addition")["whole"] == 3


def test_problems_that_were_made(ponder, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(
        json.dumps(
            {"name": "s", "question": "What is {a} + {b}?", "variables": {"a": [1, 3], "b": [1, 3]}, "answer": "a + b"}
        )
    )
    made = tmp_path / "p.jsonl"
    output = ponder(
        "problems", "templates", tmp_path / "t.json", "--dedup-threshold", "0", "--out", made, "--run", tmp_path / "r"
    )
    assert output.code == 0 and "compared with no evaluation" in output.out, output.err
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps({"question": f"what is {q}"}) + "\n" for q in ("2 + 3?", "3 - 2", "2 * 3")))
    assert [o["problem"] for o in told(ponder, made, asked)["flagged"]] == ["asked.jsonl, row 1"]
    assert told(ponder, asked, made)["exact"] == 1  # and the other way round, past how to answer
    assert told(ponder, tmp_path / "r", asked)["exact"] == 1


def test_conversations_of_several_kinds(ponder, tmp_path: Path) -> None:
    question = "What is 7 + 8?"
    asked = tmp_path / "asked.jsonl"
    text = {"system": "Add.", "user": question, "assistant": "15"}
    asked.write_text(json.dumps({"messages": [{"role": k, "content": v} for k, v in text.items()]}) + "\n")
    for row in (
        {"messages": [{"role": "user", "content": f"{question}\nPut the final answer in \\boxed{{}}."}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": question}]}]},
        {"prompt": f"Question: {question} Answer with a number.", "completion": "15"},
        {"prompt": [{"role": "user", "content": question}], "chosen": "15", "rejected": "16"},
        {"text": f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n15<|im_end|>"},
        {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "15"}]},
    ):
        train = tmp_path / "train.jsonl"
        train.write_text(json.dumps(row) + "\n")
        assert told(ponder, train, asked)["exact"] == 1, row
        train.write_text(json.dumps(row).replace("7 + 8", "7 - 8") + "\n")
        assert told(ponder, train, asked)["exact"] == 0, row


def test_training_text_that_is_not_utf8_is_refused(ponder, tmp_path: Path) -> None:
    """Its letters would be lost, and its copies not found."""
    (tmp_path / "train.txt").write_bytes("Fünf Äpfel kosten 3 Euro. Was kostet einer?".encode("latin-1"))
    output = ponder("contamination", tmp_path / "train.txt", "addition")
    assert output.code == 2 and "it is not UTF-8 text" in output.err and "save it as UTF-8" in output.err


def test_many_samples_of_one_question_are_no_boilerplate(ponder, tmp_path: Path) -> None:
    """16 answers to a test question stand under 16 copies of it."""
    long = "A farmer has seven red hens and nine white ones and sells four of them at the market on Monday."
    train, asked = tmp_path / "train.jsonl", tmp_path / "asked.jsonl"
    rows = [{"prompt": f"{long} How many are left?", "completion": f"It is {i}"} for i in range(16)]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked.write_text(json.dumps({"question": f"{long} Say how many are left, and put the number in a box."}) + "\n")
    assert len(told(ponder, train, asked)["flagged"]) == 1
    train.write_text(
        "".join(json.dumps({**row, "prompt": f"{i}: {row['prompt']}"}) + "\n" for i, row in enumerate(rows))
    )
    assert not told(ponder, train, asked)["flagged"], "what stands in many prompts is boilerplate"


def test_a_whole_problem_counts_however_often_it_stands_there() -> None:
    train = [(f"t{i}", f"{i} times they asked how many hens are left now, and more") for i in range(20)]
    (result,) = find_contamination(train, [("p", "How many hens are left now?")]).flagged
    assert result.whole and not result.exact


def test_signs_between_operands_are_words_but_hyphens_and_lists_are_not() -> None:
    assert normalized_words("3 + 4") == ["3", "+4"] != normalized_words("3 - 4") and normalized_words(
        "3*4"
    ) == normalized_words("3 × 4") == ["3", "*4"]
    listed = normalized_words("well-known step - by - step\n- a list\n- 3 of them")
    assert " ".join(listed) == "well known step by step a list 3 of them"
    assert normalized_words("x+y=3") == ["x", "+y", "=3"] and normalized_words("**3** apples") == ["3", "apples"]


def test_gsm8k_copied_into_conversations(ponder, data: Path, tmp_path: Path) -> None:
    task = GSM8K(limit=40)
    chains = Harvest((str(run_of(tmp_path / "run", task, task.test, 1)),), scorer="seen", include_held_out=True)
    write_jsonl(tmp_path / "c.jsonl", chains.rows(FilterReport()))
    asked = tmp_path / "asked.jsonl"
    questions = [p.question for p in GSM8K(limit=60, prompt="{question}").test]
    asked.write_text("".join(json.dumps({"question": q}) + "\n" for q in questions))
    result = told(ponder, tmp_path / "c.jsonl", asked)
    copied = {f"asked.jsonl, row {i}" for i in range(1, 41)}
    assert {o["problem"] for o in result["flagged"] if o["whole"]} == copied and result["problems"] == 60
