"""`ponder eval`: a problem that fails stays in the denominator, with its reason; too many are no measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

LONG = "What is 1 + 1? " * 400  # more characters than the model has places


def given(folder: Path, short: int, long: int) -> list[str]:
    """The flags for a task of so many problems that fit into the context, and so many that do not."""
    questions = [f"What is {i} + 1?" for i in range(short)] + [f"{i} {LONG}" for i in range(long)]
    for name, asked in (("train", ["What is 9 + 9?"]), ("test", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": q, "answer": "1"}) + "\n" for q in asked))
    settings = ("data=train.jsonl", "test_data=test.jsonl", "rewards=ponder.tasks.synthetic.problem_rows:accuracy")
    return [part for s in settings for part in (f"--task.{s.partition('=')[0]}", s.partition("=")[2])]


@pytest.mark.parametrize(("short", "long", "code"), [(1, 1, 3), (9, 1, 0)])
def test_a_problem_that_does_not_fit(ponder, here: Path, model: Path, short: int, long: int, code: int) -> None:
    more = ("--model", model, "--template", "qa", "--max-tokens", "2", *given(here, short, long))
    output = ponder("eval", "custom", *more)
    total = short + long
    assert output.code == code, output.err
    assert f"0 of {total}; {long} undecided, not right as far as is known" in output.out
    assert f"failed          {long} problem" in output.out and "because " in output.out and "context" in output.out
    assert (f"warning         {long} of {total} problems have no verdict" in output.out) == (code == 3)
    data = json.loads(ponder("eval", "custom", *more, "--json").out.splitlines()[-1])
    assert (data["accuracy"]["total"], data["accuracy"]["undecided"], data["num_failed"]) == (total, long, long)
    assert data["accuracy"]["high"] > data["accuracy"]["low"] == 0.0
