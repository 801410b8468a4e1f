"""Ctrl-C saves and stops; the same command goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.cli.stopping import Stop
from ponder.errors import Interrupted
from ponder.runs import newest_checkpoint, read_metrics

from .conftest import INSTALLED

STEPS = 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_stop_and_go_on(here: Path, number: int) -> None:
    argv = ["run", "tiny.py", "--steps", str(STEPS), "--prompts", "8"]
    command = [sys.executable, "-m", "ponder", *argv]
    with subprocess.Popen(command, env=INSTALLED, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        seen: list[str] = []
        while not (seen and seen[-1].startswith("step 2/")):
            seen.append(job.stderr.readline())
            assert seen[-1], "it ended early"
        job.send_signal(number)
        out, err = job.communicate(timeout=60)
    assert job.returncode == 130, (seen, out, err)
    assert "stopping: saving ... (again to quit at once)" in err and "the same command goes on" in err
    done = [int(row["step"]) for row in read_metrics("runs/tiny")]
    assert 2 <= len(done) < STEPS and done == list(range(len(done)))
    newest = newest_checkpoint("runs/tiny")
    assert newest is not None and newest.name == f"step-{len(done):06d}"

    if number == signal.SIGTERM:  # one of the two is enough for the rest
        return
    assert main(argv) == 0
    assert main([*argv, "--run", "straight"]) == 0
    went_on, straight = ([row["reward"] for row in read_metrics(r)] for r in ("runs/tiny", "straight"))
    assert len(went_on) == STEPS and went_on == straight


def test_the_second_signal_stops_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stop() as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted, match="the same command goes on"):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            stop.check()
    assert signal.getsignal(signal.SIGINT) == before
    assert capfd.readouterr().err.count("stopping: saving") == 1
