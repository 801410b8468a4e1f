"""`ponder runs` and `ponder traces`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fake_runs import TASK, StoredJob, right_answer, write_run, wrong_answer
from ponder.cli import main
from ponder.cli.runs import format_age
from ponder.runs import Run, read_traces
from ponder.terminal import format_bytes
from ponder.trace_json import trace_to_json
from ponder.types import Score, Step, ids, prompt_trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    texts = [[right_answer(0), wrong_answer(0)], [wrong_answer(1)], [right_answer(2)]]
    return write_run(tmp_path / "runs" / "r", texts, steps=[0, 0, 1])


def test_runs_lists_the_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(run.parent)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "job", "state", "metric", "best", "last", "size", "age"]
    assert row.startswith("r    StoredJob · Addition  finished")


def test_runs_json_is_one_object_per_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(run.parent), "--json"]) == 0
    [row] = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["name"] == "r" and row["state"] == "finished" and row["folder"] == str(run)


def test_runs_reports_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_traces_show_question_gold_and_verdicts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traces", str(run), "--limit", "1"]) == 0
    out = capsys.readouterr().out
    problem = TASK.test[0]
    assert problem.question in out and f"gold      {problem.answer}" in out
    assert "✓ 1  right  reward 1" in out and "✗ 2  wrong  reward 0" in out and "1 shown, of 3" in out
    assert main(["traces", str(run), "--wrong", "--limit", "1"]) == 0
    assert "1 shown with a wrong answer, among 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "numbers"),
    [
        ([], [1, 2, 3]),
        (["--step", "0"], [1, 2]),
        (["--step", "-1"], [3]),
        (["--problem", "2"], [2]),
        (["--problem", TASK.test[2].id], [3]),
        (["--right"], [1, 3]),
        (["--wrong"], [1, 2]),
        (["--wrong", "--limit", "1"], [1]),
    ],
)
def test_traces_selects(run: Path, more: list[str], numbers: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traces", str(run), "--json", *more]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["trace"] for row in rows] == numbers
    wanted = {"--right": {"right"}, "--wrong": {"wrong"}}.get(more[0] if more else "", {"right", "wrong"})
    assert {answer["verdict"] for row in rows for answer in row["answers"]} <= wanted


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--step", "7"], "steps 0 to 1"),
        (["--problem", "no/such"], "give an id such as"),
        (["--right", "--wrong"], "give one of them"),
        (["--limit", "-1"], "number of traces"),
        (["--scorer", "acuracy"], "accuracy"),
    ],
)
def test_traces_refuses_in_one_sentence(
    run: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["traces", str(run), *more]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_traces_shows_advantages_and_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = prompt_trace(TASK.test[0], ids([1]))
    first = trace.add(Step(0, "think\n", ids([2, 3]), np.zeros(2, np.float32)))
    for k, text in enumerate(("one", "two")):
        leaf = trace.add(Step(first, text, ids([4]), np.zeros(1, np.float32), "eos", scores={"s": Score(float(k))}))
        trace.steps[leaf].advantages = np.asarray([k - 0.5], np.float32)
    trace.chosen = 3
    with Run(tmp_path / "r", StoredJob(TASK)) as run:
        run.write_traces(0, [trace])
    assert main(["traces", str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert "└─● think" in out and "  ├─○ [s 0.00] one" in out and "  └─● [s 1.00] two" in out
    assert "✓ 1  chosen  right  reward 1  advantage +0.500  3 tokens  ended by eos" in out


def test_traces_draws_token_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = prompt_trace(TASK.test[0], ids([1]))
    notes = {"entropy": np.asarray([0.0, 1.0, 0.5], np.float32), "gini": np.asarray([0.0, 0.5, 0.25], np.float32)}
    trace.add(Step(0, "12", ids([2, 3, 4]), np.zeros(3, np.float32), "eos", scores={"s": Score(1.0)}, notes=notes))
    with Run(tmp_path / "r", StoredJob(TASK)) as run:
        run.write_traces(0, [trace])
    assert main(["traces", str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert "    entropy    mean 0.500, highest 1.000  ▁█▅" in out
    assert "    gini       mean 0.250, highest 0.500  ▁█▅" in out and "varentropy" not in out
    assert main(["traces", str(tmp_path / "r"), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["token_stats"] == {"entropy": [0.0, 1.0, 0.5], "gini": [0.0, 0.5, 0.25]}


def test_traces_full_prints_every_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traces", str(run), "--json", "--full", "--limit", "0"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stored = [{"step": step, **trace_to_json(trace)} for step, trace in read_traces(run)]
    assert [{k: v for k, v in row.items() if k != "trace"} for row in rows] == stored
    assert rows[0]["steps"][1]["logprobs"] == [-0.5] * 3 and [row["trace"] for row in rows] == [1, 2, 3]
    assert main(["traces", str(run), "--full"]) == 2 and "--json" in capsys.readouterr().err


def test_traces_repair_gives_up_what_is_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traces", str(run), "--repair"]) == 0 and capsys.readouterr().out == "nothing is damaged\n"
    path = run / "traces.bin"
    content = path.read_bytes()
    path.write_bytes(content[:150] + b"!" + content[151:])
    assert main(["traces", str(run), "--json"]) == 2
    assert f"ponder traces {run} --repair" in capsys.readouterr().err
    assert main(["traces", str(run), "--repair"]) == 0
    assert capsys.readouterr().out.startswith("block 1: ")
    assert main(["traces", str(run), "--json"]) == 0
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == [0, 1]


def test_sizes_and_ages_are_short() -> None:
    assert [format_bytes(n) for n in (5, 1500, 2_340_000, 150e6, 5e9)] == ["5 B", "2 kB", "2.3 MB", "150 MB", "5.0 GB"]
    assert [format_age(s) for s in (5, 61, 7200, 200_000)] == ["5 s", "1 min", "2 h", "2 d"]
