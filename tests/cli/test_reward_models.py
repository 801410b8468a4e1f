"""From labels to a judge that guides, by commands alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ponder.runs import read_metrics, read_traces
from ponder.tasks.step_labels import LABEL_SCORE
from ponder.train.reward_objectives import REWARD_OBJECTIVES, StateValue

from .conftest import CommandResult

Ponder = Callable[..., CommandResult]
CPU = ("--device", "cpu", "--dtype", "float32")
SMALL = ("--steps", "2", "--batch-size", "4", "--lr", "1e-3", *CPU)


def labelled(ponder: Ponder, model: Path, task: str, limit: int, *more: str) -> CommandResult:
    small = (
        "--answers-per-problem",
        "4",
        "--limit",
        str(limit),
        "--max-completions",
        "2",
        "--max-tokens",
        "6",
        "--separator",
        "1",
    )
    return ponder("label", task, "--model", model, *small, "--run", "labels", *CPU, *more)


def test_a_solver_that_is_never_right_gives_no_labels(ponder: Ponder, here: Path, model: Path) -> None:
    text = labelled(ponder, model, "addition", 2)
    assert text.code == 2 and "no answer was ever right" in text.err and "use it" not in text.out
    assert any(line.split()[:2] == ["problems", "2"] for line in text.err.splitlines()), "the funnel is shown"
    assert len(list(read_traces("labels"))) == 2, "and what there is is kept"


def test_label_then_train_then_guide(ponder: Ponder, here: Path, model: Path) -> None:
    """One character of some forty is right."""
    text = labelled(ponder, model, "fakes:DigitTask", 100, "--task.size", "100")
    assert text.code == 0 and "steps of 100 problems" in text.out, text.err
    assert "ponder reward labels --algorithm prm" in text.out and read_metrics("labels")[-1]["labels"] > 400
    traces = [t for _, t in read_traces("labels")]
    assert len(traces) == 100 and all(LABEL_SCORE in s.scores for t in traces for s in t.steps[1:])
    text = ponder("reward", "labels", "--algorithm", "prm", "--model", model, *SMALL, "--held-out-tenths", "3")
    assert text.code == 0 and "after 2 steps" in text.out and "ponder solve '" not in text.out, text.err
    run = Path(text.out.splitlines()[-1].split()[-1])
    assert run == Path("runs/prm-labels-" + run.name.removeprefix("prm-labels-")) and len(read_metrics(run)) == 2
    assert f"--guide reward:{run}" in text.out
    text = ponder("processbench", run)
    assert text.code == 2, "which its alphabet cannot write, or which is not there"


def test_json_and_settings(ponder: Ponder, here: Path, model: Path) -> None:
    rows = [{"prompt": f"{i}+1", "completions": ["1", "2"], "labels": [0.25, 1.0]} for i in range(12)]
    Path("v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (
        "--algorithm",
        "value",
        "--algorithm.kind",
        "two-hot",
        "--algorithm.bins",
        "5",
        "--head-only",
        "--json",
        "--run",
        "v",
    )
    output = ponder("reward", "v.jsonl", "--model", model, *given, *SMALL)
    *_, done = [json.loads(line) for line in output.out.splitlines()]
    assert output.code == 0 and done["event"] == "done" and done["last"]["rewards/errors"] < 1, output.err
    job = json.loads(Path("v/job.json").read_text())
    assert job["algorithm"]["is"].endswith(":StateValue") and job["algorithm"]["bins"] == 5 and job["head_only"]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("reward", "--algorithm", "prm"), "required: DATA"),
        (("reward", "x.jsonl"), "--algorithm"),
        (("reward", "x.jsonl", "--algorithm", "rpm"), "no algorithm named 'rpm'. Did you mean 'prm' or 'orm'?"),
        (("reward", "x.jsonl", "--algorithm", "value", "--algorithm.bin", "5"), "no algorithm setting named 'bin'"),
        (("reward", "x.jsonl", "--algorithm", "value", "--algorithm.kind", "huber"), "--algorithm.kind"),
        (
            ("label", "addition", "--labeller", "first-error", "--estimation", "hard"),
            "--estimation is for --labeller shepherd",
        ),
        (("label", "addition", "--max-completions", "0"), "completions"),
        (("processbench", "nowhere"), "nowhere"),
        (("processbench", "nowhere", "--limit", "0"), "at least one solution"),
    ],
)
def test_what_cannot_be_is_one_sentence(ponder: Ponder, here: Path, argv: tuple[str, ...], why: str) -> None:
    output = ponder(*argv)
    assert output.code == 2 and why in output.err and output.err.count("\n") == 1, output.err
    assert not Path("runs").exists()


def test_every_kind_has_its_objective(ponder: Ponder) -> None:
    output = ponder("reward", "--help")
    shown = " ".join(output.out.split()).replace("- ", "-")  # a line may end at a hyphen
    assert ", ".join(REWARD_OBJECTIVES) in shown and StateValue().paper


def test_a_reward_model_is_not_asked_questions(ponder: Ponder, here: Path, model: Path) -> None:
    rows = [{"prompt": f"{i}", "completion": "1", "label": i % 2} for i in range(9)]
    Path("o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ponder("reward", "o.jsonl", "--algorithm", "orm", "--model", model, *SMALL, "--run", "orm").code == 0
    output = ponder("solve", "1+1", "--model", "orm")
    assert output.code == 2 and "cannot write" in output.err
    output = ponder("processbench", "orm")
    assert (output.code == 2 and "for process reward models" in output.err) or "PONDER_DATA" in output.err
