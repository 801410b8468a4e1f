"""`ponder problems`: from templates to a file, with a small model as the solver, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SUMS = {
    "name": "sums",
    "question": "What is {a} + {b}?",
    "variables": {"a": [1, 9], "b": [1, 9]},
    "answer": "a + b",
}


@pytest.fixture
def templates(here: Path) -> Path:
    (here / "t.json").write_text(json.dumps(SUMS))
    return here / "t.json"


def test_templates_to_a_file_that_trains(ponder, templates: Path):
    printed = ponder("problems", "templates", templates, "--count", "30", "--dedup-threshold", "0", "--out", "p.jsonl")
    assert printed.code == 0, printed.err
    assert "drawn" in printed.out and "30 problems in p.jsonl" in printed.out and "ponder train custom" in printed.out
    settings = printed.out.split("ponder train custom ")[1].split()
    shown = ponder("tasks", "custom", *settings)
    assert shown.code == 0 and "gives it 1" in shown.out, shown.err
    again = ponder("problems", "templates", templates, "--out", "p.jsonl")
    assert again.code == 2 and "is already there" in again.err
    output = ponder("problems", "templates", templates, "--dedup-threshold", "0", "--out", "q.jsonl", "--json")
    last = json.loads(output.out.splitlines()[-1])
    assert last["event"] == "done" and last["problems"] == 81  # of 81 that there are


def test_a_model_that_solves_nothing(ponder, templates: Path, model: Path):
    output = ponder(
        "problems", "templates", templates, "--count", "5", "--dedup-threshold", "0", "--model", model,
        "--samples-per-solver", "2", "--max-tokens", "2", "--prompt", "{question}", "--out", "p.jsonl",
    )  # fmt: skip
    assert output.code == 2 and "found none of the answers" in output.err and "5 by no sample" in output.err
    assert not Path("p.jsonl").exists() and Path("runs/problems-p/traces.bin").exists()


def test_bad_requests(ponder, templates: Path):
    for argv, wanted in (
        (("magic", "--out", "x"), "is not one of"),
        (("templates", "--out", "x"), "templates come from a file"),
        (("templates", "nowhere", "--out", "x"), "there is no file nowhere"),
        (("write", "--out", "x"), "asks a model for problems"),
        (("templates", "t.json", "--out", "no/x"), "there is no folder no to write x in"),
        (("templates", "t.json", "--embedder", "nope:f", "--out", "x"), "cannot load 'nope:f'"),
        (("filter", "t.json", "--out", "x"), "lacks the column 'prompt'; it has: name, question"),
        (("filter", "nope", "--out", "x"), "no task named"),
        (("filter", "t.json", "--task.a", "1", "--out", "x"), "is a task's setting, and t.json is a file"),
        (("mutate", "t.json", "--operator", "steps", "--model", "m", "--out", "x"), "no operator of mutate"),
    ):
        output = ponder("problems", *argv)
        assert output.code == 2 and wanted in output.err, (argv, output.err)
    assert not Path("x").exists() and not Path("runs/problems-x").exists()  # the corrected command can begin
