"""What is shown while a job works, and how an answer is read for a vote."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ponder.cli.graceful_stop import GracefulStop
from ponder.cli.live_panel import LivePanel, render_panel
from ponder.cli.progress import ProgressJson, ProgressLines, ProgressTracker, best_and_worst, one_line
from ponder.errors import Interrupted
from ponder.pipelines.job.base_job import format_duration
from ponder.reason.answer_extraction import extract_answer
from ponder.types import Problem, Score, Step, Trace, ids, prompt_trace, user_messages

METRICS = {
    "reward": 0.5,
    "frac_reward_zero_std": 0.25,
    "completions/mean_length": 8.0,
    "entropy": 0.5,
    "grad_norm": 1.0,
}


SICK = METRICS | {
    "frac_reward_zero_std": 0.97,
    "frac_groups_failed": 0.9,
    "frac_groups_solved": 0.0,
    "frac_undecided": 0.12,
    "completions/clipped_ratio": 0.41,
    "completions/max_length": 256.0,
    "sampling/sampling_logp_difference/mean": 0.12,
}
HARD = "97 % of groups have equal rewards, mostly the lowest: problems too hard"


def report_unhealthy_steps(seen: ProgressTracker, first: int, last: int, **changes: float) -> None:
    """Steps of a run that is sick in more ways than are shown; `changes` make it better."""
    for step in range(first, last + 1):
        seen.step(step, 100, SICK | {"reward": 0.01 * step} | changes, [])


def trace(*scored: tuple[str, float | None, str]) -> Trace:
    out = prompt_trace(Problem("p", user_messages("What is 3 + 4?")), ids([1]))
    for text, value, reason in scored:
        score = {"accuracy": Score(value, reason)}
        out.add(Step(0, text, ids([2]), np.zeros(1, np.float32), "eos", scores=score))
    return out


def run_three_steps(seen: ProgressTracker) -> None:
    """What a job tells, its tokens from another thread."""
    seen.phase("load")
    for step in range(3):
        seen.phase("sample")
        worker = threading.Thread(target=lambda: [seen.tokens(100) for _ in range(3)])
        worker.start()
        worker.join()
        seen.phase("learn")
        seen.share(0.5)
        seen.step(step + 1, 10, METRICS, [trace(("7", 1.0, "right"), ("\x1b[31m" + "so " * 200, 0.0, "no answer"))])
    seen.phase("sample")


@pytest.mark.parametrize("width", [80, 120])
def test_panel_fits_and_shows_it_all(width: int) -> None:
    seen = ProgressTracker("RL · addition · smollm2", GracefulStop(), Path("runs/demo"))
    seen.total = 10
    for state in ("new", "driven", "stopping"):
        if state == "driven":
            run_three_steps(seen)
        seen.stop.signal_count = int(state == "stopping")
        out = io.StringIO()
        Console(file=out, width=width, force_terminal=True, color_system=None).print(render_panel(seen, width))
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) < width and "\x1b" not in out.getvalue()
    for text in ("step 3/10", "reward 0.500  ▅▅▅", "zero-std 0.25", "best", "worst", "(0 no answer)", "stopping"):
        assert text in out.getvalue()
    assert len(lines) < 20


@pytest.mark.parametrize("width", [80, 120])
def test_panel_shows_findings(width: int) -> None:
    seen = ProgressTracker("RL · addition · smollm2", GracefulStop(), Path("runs/demo"))
    run_three_steps(seen)
    report_unhealthy_steps(seen, 4, 20)
    seen.examples = best_and_worst([trace(("7", 1.0, "right"), ("so " * 200, 0.0, "no answer"))])
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(render_panel(seen, width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) < width and len(lines) <= 22, "fits a terminal of 80 by 24"
    output = [line[1:-1].strip() for line in lines if line[2:].startswith("! ")]
    assert [t[:22] for t in output] == ["! 97 % of groups have ", "! 12 % of answers unde", "! 41 % truncated: rais"]
    text = " ".join(line[1:-1].strip() for line in lines)
    assert f"{HARD}; use easier ones, --curriculum frontier or a larger --group-size" in text


def test_live_panel() -> None:
    out = io.StringIO()
    panel = LivePanel("RL", GracefulStop(), Path("runs/demo"))
    panel.console = Console(file=out, width=80, force_terminal=True)
    with panel:
        assert panel.stop.quiet
        run_three_steps(panel)
    assert "step 3/10" in out.getvalue() and not panel.stop.quiet


def test_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_three_steps(ProgressLines("RL · addition", GracefulStop()))
    output = capsys.readouterr()
    first, *steps = output.err.splitlines()
    assert output.out == "" and first == "RL · addition  loading the model"
    assert len(steps) == 3 and steps[0].startswith("step 1/10  reward 0.500  zero-std 0.25  length 8.0")
    assert steps[0].endswith(" left") and " tok/s" in steps[0]
    monkeypatch.setattr("ponder.pipelines.job.progress_lines.HEARTBEAT_SECONDS", -1.0)
    run_three_steps(ProgressLines("RL · addition", GracefulStop()))
    assert "step 2/10  sampling 100 tokens, " in capsys.readouterr().err


def test_lines_heartbeat_in_a_silent_phase(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ponder.pipelines.job.progress_lines.HEARTBEAT_SECONDS", 0.01)
    with ProgressLines("Evaluate", GracefulStop(), unit="problem") as seen:
        seen.total = 300
        seen.phase("check")  # and then nothing is reported
        text, deadline = "", time.monotonic() + 60
        line = re.compile(r"problem 0/300  checking that all is right, for \d+ s")
        while not line.search(text) and time.monotonic() < deadline:
            time.sleep(0.01)
            text += capsys.readouterr().err
    assert line.search(text)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == "", "a job that ended says nothing"


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    seen = ProgressJson("train", GracefulStop())
    run_three_steps(seen)
    seen.step(4, 10, {"reward": float("nan")}, [])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == {"event": "step", "part": "train", "step": 1, "total": 10, **METRICS, "findings": []}
    assert rows[-1]["reward"] is None, "JSON has no NaN"
    report_unhealthy_steps(seen, 5, 12)
    output = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    assert [(f["name"], f["severity"]) for f in output] == [("too hard", 3), ("undecided", 2), ("truncated", 2)]
    assert output[0]["text"].startswith(HARD)
    solving = ProgressJson("", GracefulStop(), unit="problem")
    solving.step(1, 2, {"accuracy": 0.5}, [])
    assert json.loads(capsys.readouterr().out) == {"event": "step", "problem": 1, "total": 2, "accuracy": 0.5}


def test_lines_repeat_a_finding_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seen = ProgressLines("RL", GracefulStop())
    seen.phase("load")
    report_unhealthy_steps(seen, 1, 30)
    output = capsys.readouterr().err.splitlines()
    places = [output[:i][-1].split("  ")[0] for i, line in enumerate(output) if line.startswith(f"  ! {HARD}")]
    assert places == ["step 6/100", "step 16/100", "step 26/100"]
    assert sum(line.startswith("  ! ") for line in output) == 9, "three at a time, the fourth waits"
    report_unhealthy_steps(seen, 31, 50, **{name: 0.0 for name in SICK if name.startswith("frac_")})
    assert "  ! ratio drifts: sampler and learner differ by 0.12 nats" in capsys.readouterr().err
    seen.phase("load")  # the next job begins anew
    assert not seen.rows and not seen.findings
    report_unhealthy_steps(seen, 1, 6)
    assert f"  ! {HARD}" in capsys.readouterr().err


def test_rows_are_kept_as_far_as_they_are_read() -> None:
    seen = ProgressTracker("RL", GracefulStop())
    report_unhealthy_steps(seen, 1, 200)
    assert [round(100 * row["reward"]) for row in seen.rows] == [*range(1, 11), *range(151, 201)]


def test_a_stop_is_raised_where_the_job_can_save() -> None:
    seen = ProgressTracker("RL", GracefulStop())
    seen.phase("load")
    seen.stop.signal_count = 1
    seen.step(1, 2, METRICS, [])
    seen.phase("save")
    for call in (lambda: seen.phase("sample"), lambda: seen.tokens(1), lambda: seen.share(0.1)):
        with pytest.raises(Interrupted):
            call()


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("ponder.pipelines.job.progress_lines.time.monotonic", lambda: clock[0])
    resumed = ProgressTracker("RL", GracefulStop())
    resumed.phase("load")
    clock[0] = 100.0  # loading is no part of the pace
    resumed.phase("sample")
    assert resumed.seconds_left() is None
    clock[0] = 110.0
    resumed.step(6, 10, METRICS, [])
    assert resumed.seconds_left() == pytest.approx(40.0)
    clock[0] = 115.0
    assert resumed.seconds_left() == pytest.approx(35.0)
    solving = ProgressTracker("eval", GracefulStop(), unit="problem")
    solving.phase("solve")
    clock[0] = 125.0
    solving.step(120, 300, {"accuracy": 0.5}, [trace()] * 20)
    assert solving.seconds_left() == pytest.approx(90.0)


def test_examples() -> None:
    many = [trace(("a", 0.0, "wrong"), ("b", None, "crashed")), trace(("c", 1.0, "right"))]
    assert [(score.value, text) for _, score, text in best_and_worst(many)] == [(1.0, "c"), (0.0, "a")]
    assert [text for _, _, text in best_and_worst(many[:1])] == ["a"]
    assert best_and_worst([trace(("b", None, "crashed"))]) == []


@pytest.mark.parametrize(
    ("seconds", "message"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (3599, "1 h 00 min"), (4900, "1 h 22 min")]
)
def test_duration(seconds: float, message: str) -> None:
    assert format_duration(seconds) == message


def test_one_line() -> None:
    assert one_line("a\n b\t c", 9) == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("\x1b[2J\x07", 12) == r"\x1b[2J\x07"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("27 + 58 = 85", "85"),
        ("It is\n\\boxed{85.0}", "85"),
        ("The answer is 1,234.50.", "1234.5"),
        ("<answer>-0.05</answer>", "-0.05"),
        ("\\boxed{\\frac{2}{6}}", "1/3"),
        ("\\boxed{40\\%}", "40%"),
        ("<answer>(1 + 2) * 3</answer>", "(1 + 2) * 3"),
        (" Paris ", "Paris"),
        ("word " * 100, None),
        ("The answer is 4 or 5.", None),
        ("<think>never ends", None),
        ("", None),
    ],
)
def test_read(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer
