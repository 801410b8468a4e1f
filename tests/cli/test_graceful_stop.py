"""Ctrl-C saves and stops, at any moment and without a traceback; the same command goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest

from ponder import staging, user_calls
from ponder.cli import main, watchdog
from ponder.cli.graceful_stop import GracefulStop
from ponder.errors import Interrupted
from ponder.pipelines.job import slow_calls
from ponder.protocols import Scorer
from ponder.reason.operators import evaluate
from ponder.runs import newest_checkpoint, read_metrics
from ponder.types import Problem, Score, Step, Trace, ids, prompt_trace, user_messages

from .conftest import SUBPROCESS_ENV

STEPS = 12
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


class CliProcess(subprocess.Popen[str]):
    """A process that does not outlive its test. One that did not stop in time says where it is."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None and self.poll() is None:
            self.send_signal(signal.SIGABRT)  # at which `faulthandler` writes every thread's stack
            _, text = self.communicate(timeout=60)
            assert error is not None
            error.add_note(text)
        super().__exit__(kind, error, tb)


def start_cli(*argv: str | Path, cwd: Path | None = None) -> CliProcess:
    command = [sys.executable, "-X", "faulthandler", "-m", "ponder", *map(str, argv)]
    pipe = subprocess.PIPE
    return CliProcess(command, env=SUBPROCESS_ENV, cwd=cwd, stderr=pipe, stdout=pipe, text=True)


@pytest.fixture(autouse=True, scope="module")
def _heeded() -> Iterator[None]:
    """As in a terminal: under `nohup`, or where a service started the tests, children would inherit ignored signals."""
    ignored = [number for number in CODES if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def wait_for_handlers(job: CliProcess) -> None:
    """Wait until our handlers are there: before that, the interpreter itself has not come to our code."""
    while job.poll() is None:
        output = Path(f"/proc/{job.pid}/status").read_text().partition("SigCgt:")[2].split()
        if output and int(output[0], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def read_until(job: CliProcess, begins: str) -> list[str]:
    assert job.stderr is not None
    seen: list[str] = []
    while not (seen and seen[-1].startswith(begins)):
        seen.append(job.stderr.readline())
        assert seen[-1], "it ended early"
    return seen


def test_stop_and_go_on(here: Path) -> None:
    begun = ["run", "tiny.py", "--steps", str(STEPS), "--problems-per-step", "8", "--run"]
    for attempt in range(5):
        argv = [*begun, f"stopped-{attempt}"]
        with start_cli(*argv) as job:
            seen = read_until(job, "step 2/")
            job.send_signal(signal.SIGINT)
            out, err = job.communicate(timeout=240)
        if job.returncode:  # else it had ended before this process came to send the signal
            break
    assert job.returncode == 130, (seen, out, err)
    assert "stopping: saving ... (again to quit at once)" in err and "the same command goes on" in err
    done = [int(row["step"]) for row in read_metrics(argv[-1])]
    assert 2 <= len(done) < STEPS and done == list(range(len(done)))
    newest = newest_checkpoint(argv[-1])
    assert newest is not None and newest.name == f"step-{len(done):06d}"

    assert main(argv) == 0
    assert main([*begun, "straight"]) == 0
    went_on, straight = ([row["reward"] for row in read_metrics(r)] for r in (argv[-1], "straight"))
    assert len(went_on) == STEPS and went_on == straight


def interrupt_at_random_moments(count: int, seed: int, model: Path, trained: Path, folder: Path) -> None:
    """Signals at many moments of many commands: one line at most, and the code that a shell expects."""
    rng = random.Random(seed)
    tiny = ["--model", str(model), "--max-tokens", "3"]
    commands: list[list[str]] = [
        ["--help"],
        ["tasks"],
        ["eval", "addition", "--limit", "20", "--run", "{}", *tiny],
        ["train", "addition", "--problems-per-step", "4", "--group-size", "4", "--steps", "9", "--run", "{}", *tiny],
        ["export", str(model), "{}"],
        ["export", str(model), "{}.gguf"],
        ["plot", "training", str(trained), "--out", "{}"],
        ["solve", "1 + 1?", "--n", "4", *tiny],
        ["run", "tiny.py", "--steps", "9", "--run", "{}"],
    ]
    for i in range(count):
        for argv in commands:
            number = rng.choice(list(CODES))
            with start_cli(*(a.replace("{}", f"out-{seed}-{i}-{argv[0]}") for a in argv), cwd=folder) as job:
                wait_for_handlers(job)
                time.sleep(rng.uniform(0, rng.choice([0.3, 2.0])))
                job.send_signal(number)
                if rng.random() < 0.5:
                    time.sleep(rng.choice([0, 0.05]))
                    job.send_signal(number)
                out, err = job.communicate(timeout=240)
            text = f"{argv}, {number.name}: {job.returncode}\n{out}\n{err}"
            # While the interpreter closes the signal itself ends the process, which a shell shows as the same code.
            assert job.returncode in (0, CODES[number], -number), text
            assert "Traceback" not in out + err and "Exception ignored" not in err, text
    assert not [left for left in folder.iterdir() if left.name.startswith(".")], "an unfinished folder was left"


def test_no_moment_gives_a_traceback(here: Path, model: Path, trained: Path) -> None:
    interrupt_at_random_moments(1, 0, model, trained, here)


@pytest.mark.nightly
def test_no_moment_of_many_gives_a_traceback(here: Path, model: Path, trained: Path) -> None:
    interrupt_at_random_moments(3, 1, model, trained, here)


HANGS = """
import asyncio, sys, time

calls = 0

def count():
    global calls
    calls += 1
    if calls > 12:  # past the first step
        print("hanging", file=sys.stderr, flush=True)
    return calls > 12

def slow(completions, **columns):
    if count():
        time.sleep(1000)
    return [float(len(c) % 2) for c in completions]

async def waits(completions, **columns):
    if count():
        await asyncio.sleep(1000)
    return [float(len(c) % 2) for c in completions]

def stubborn(completions, **columns):
    while count():
        try:
            time.sleep(1000)
        except Exception:
            pass
    return [float(len(c) % 2) for c in completions]
"""
RECIPE = """
from dataclasses import replace
import tiny
from ponder.tasks import CustomTask

def recipe(reward: str = "own:slow"):
    task = CustomTask(data="rows.jsonl", rewards=(reward,))
    return replace(tiny.recipe(steps=50), task=task, preflight=False, save_every=1)
"""
REWARDED = ["run", "rewarded.py"]


@pytest.fixture
def reward_recipe(here: Path) -> Path:
    (here / "own.py").write_text(HANGS)
    (here / "rewarded.py").write_text(RECIPE)
    (here / "rows.jsonl").write_text("".join(f'{{"prompt": "What is {i}+1?"}}\n' for i in range(99)))
    return here


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        ("slow", signal.SIGTERM),
        ("waits", signal.SIGHUP),
        pytest.param("stubborn", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_reward_function_hangs_is_stopped(reward_recipe: Path, reward: str, number: signal.Signals) -> None:
    with start_cli(*REWARDED, "--reward", f"own:{reward}", "--run", "run", cwd=reward_recipe) as job:
        read_until(job, "hanging")
        job.send_signal(number)
        _, err = job.communicate(timeout=240)
    assert job.returncode == CODES[number], err
    assert "Traceback" not in err
    assert reward != "slow" or "hanging" not in err, "another call began after the stop"
    assert (f"own:{reward} does not end; the last checkpoint stands" in err) == (reward == "stubborn")
    newest = newest_checkpoint(reward_recipe / "run")
    assert (
        newest is not None and int(newest.name.removeprefix("step-")) == len(read_metrics(reward_recipe / "run")) >= 1
    )


def test_the_second_signal_stops_at_once(reward_recipe: Path) -> None:
    with start_cli(*REWARDED, "--reward", "own:stubborn", cwd=reward_recipe) as job:
        read_until(job, "hanging")
        job.send_signal(signal.SIGINT)
        read_until(job, "stopping")
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=240)
    assert job.returncode == 130 and err.splitlines()[-1] == "stopped"


def told(capfd: pytest.CaptureFixture[str], text: str) -> None:
    """Wait until it stands on stderr."""
    so_far = ""
    while text not in so_far:
        so_far += capfd.readouterr().err
        time.sleep(0.01)


def test_code_that_hangs_is_named_while_it_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(slow_calls, "SLOW_BLOCKING_SECONDS", 0.05)
    monkeypatch.setattr(slow_calls, "SLOW_WAITING_SECONDS", 0.05)
    with GracefulStop():
        with user_calls.track("reward mine:slow", sync=True, is_user_code=True):
            told(capfd, "reward mine:slow has been running for")

        async def waits() -> None:
            with user_calls.track("reward mine:waits", is_user_code=True):
                await asyncio.to_thread(told, capfd, "reward mine:waits has been running for")

        asyncio.run(waits())


class Hangs:
    """A verifier of the user's own that never returns, and is not a reward function."""

    name = "hangs"

    async def __call__(self, trace: Trace, steps: object) -> list[Score]:
        while True:
            pass


def spin() -> None:
    while True:
        pass


async def wait() -> None:
    await asyncio.sleep(1000)


async def judge() -> None:
    scorer: Scorer = Hangs()
    trace = prompt_trace(Problem("p", user_messages("?")), ids([1]))
    await evaluate(trace, [trace.add(Step(0, "a", ids([1])))], scorer)


@pytest.mark.parametrize("work", [spin, lambda: asyncio.run(wait()), lambda: asyncio.run(judge())])
def test_what_never_looks_whether_to_stop_is_broken_off(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]
) -> None:
    monkeypatch.setattr(watchdog, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "FOREIGN_CODE_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "OWN_CODE_GRACE_SECONDS", 0.05)
    before = signal.getsignal(signal.SIGTERM)
    with GracefulStop(), pytest.raises((Interrupted, asyncio.CancelledError)):
        os.kill(os.getpid(), signal.SIGTERM)
        work()
    assert signal.getsignal(signal.SIGTERM) == before


def test_learning_and_saving_are_not_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "OWN_CODE_GRACE_SECONDS", 0.02)
    with GracefulStop() as stop:
        stop.critical = True
        os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        while time.monotonic() - began < 0.2:
            pass
        with pytest.raises(Interrupted, match="the same command goes on"):
            stop.check()


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with GracefulStop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            stop.check()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sweeping_removes_what_is_unfinished_and_gives_back_what_was(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "weights").write_text("old")
    with staging.staging_folder(target) as work:
        target.rename(work / "old")
        staging.remove_all()
        assert [p.name for p in tmp_path.iterdir()] == ["model"] and (target / "weights").read_text() == "old"


def test_a_signal_in_the_middle_of_an_import_ends_with_one_line() -> None:
    code = (
        "import os, signal, sys, types; from ponder import signals; sys.modules['ponder.staging'] ="
        " types.ModuleType('ponder.staging'); signals.install(); os.kill(os.getpid(), signal.SIGTERM)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=SUBPROCESS_ENV, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (143, "stopped\n")


def test_a_forked_process_sweeps_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal, time, pathlib\n"
        "from ponder import signals, staging\n"
        "signals.install()\n"
        "with staging.staging_folder(pathlib.Path('x')) as work:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(9)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143\n"
        "    assert work.exists()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=SUBPROCESS_ENV, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
