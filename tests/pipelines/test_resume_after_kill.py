"""A run that is killed again and again, at any moment and inside its saves, ends as the one that never was.

Run as a program, this file is a nursery: it imports once, and forks a child for each life of a run. Such a child
dies by SIGKILL, sent by the test after a time, or by itself: at the n-th thing that a save does to the disk, or in the
middle of the n-th block of traces.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines.rl import RL
from ponder.reason.strategies import Samples
from ponder.runs import Run, checkpoints, read_metrics, read_traces
from ponder.runs.append_file import AppendFile
from ponder.runs.block_file import BlockReader
from ponder.runs.trace_store import TRACES_FILE
from ponder.trace_json import trace_to_json
from ponder.train.checkpoint import CheckpointWriter
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Sampling

JOB = RL(
    task=DigitTask(), model=ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32), template=QUESTION_TEMPLATE,
    strategy=Samples(8, Sampling(max_tokens=2)), algorithm=GRPO(kl=None), optimizer=AdamW(lr=3e-3, warmup_steps=2),
    steps=9,
    problems_per_step=6, max_tokens_per_microbatch=20, save_every=2, device="cpu", dtype="float32",
)  # fmt: skip
KILLS = 8 if os.environ.get("PONDER_FUZZ") else 4  # by time, and as many inside saves; in the background, and not
CHAIN = 4  # at most so many in one run
PATIENCE = 600.0  # seconds for one life


# the child's side


class Hourglass:
    """Kills this process at the n-th thing that a save does to the disk, as Python tells its audit hooks."""

    def __init__(self, grains: int) -> None:
        self.grains, self.fallen = grains, 0

    def __call__(self, event: str, about: tuple[Any, ...]) -> None:
        names = str(about[:2]) if event in ("open", "os.mkdir", "os.rename", "os.chmod") else ""
        if event in ("os.remove", "os.rmdir") or ".new" in names or ".old" in names:
            self.fallen += 1
            if self.fallen == self.grains:
                os.kill(os.getpid(), signal.SIGKILL)


def write_in_background() -> None:
    """Whatever the device; and late, when the next step has changed what is being written."""
    begin, wait, write, metrics = (
        CheckpointWriter.__init__,
        CheckpointWriter.wait,
        CheckpointWriter._write,
        Run.write_metrics,
    )
    stepped = threading.Event()

    def waited(saver: CheckpointWriter) -> None:
        stepped.set()
        wait(saver)
        stepped.clear()

    def late(*given: Any) -> None:
        stepped.wait(0.2)  # there is no step after the last
        write(*given)

    def told(*given: Any) -> None:
        metrics(*given)
        stepped.set()

    CheckpointWriter.__init__ = lambda *given, **named: begin(*given, **{**named, "background": True})
    CheckpointWriter.wait, CheckpointWriter._write, Run.write_metrics = waited, late, told


def die_inside_a_block(number: int, share: float) -> None:
    """Of the n-th block of traces only a part reaches the file."""
    append, count = AppendFile.append, 0

    def torn(file: AppendFile, data: bytes) -> None:
        nonlocal count
        count += file.path.name == TRACES_FILE
        if file.path.name == TRACES_FILE and count == number:
            append(file, data[: int(share * len(data))])
            os.kill(os.getpid(), signal.SIGKILL)
        append(file, data)

    AppendFile.append = torn


def live(folder: str, grains: int, background: bool, block: int, share: float) -> None:
    """One life; it ends by itself only when the run is done."""
    code = 1
    os.dup2(2, 1)  # the nursery's words go to the test
    if block:
        die_inside_a_block(block, share)
    if background:
        write_in_background()
    try:
        glass = Hourglass(grains)
        sys.addaudithook(glass)
        JOB(folder)
        Path(folder + ".fallen").write_text(str(glass.fallen))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def nursery() -> None:
    with tempfile.TemporaryDirectory() as warm:  # what is imported or built at first use costs a second: once is enough
        for _ in range(2):
            JOB(f"{warm}/run")
    while threading.active_count() > 1:  # threads are not forked; the engine's ends when it has nothing to do
        time.sleep(0.05)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            live(*json.loads(line))
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


# the test's side


class Nursery:
    def __init__(self) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that select sees all there is
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def live(
        self,
        folder: Path,
        seconds: float = PATIENCE,
        grains: int = 0,
        background: bool = False,
        block: int = 0,
        share: float = 0.0,
    ) -> bool:
        """Whether the run was done before it was killed: after so many seconds, at so many grains, or after a share of
        a block of traces."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(folder), grains, background, block, share]).encode() + b"\n")
        child = self._told(PATIENCE)
        assert child is not None
        status = self._told(seconds)
        if status is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(child, signal.SIGKILL)
            assert seconds < PATIENCE, "the run hangs"
            status = self._told(PATIENCE)
        assert status in (0, signal.SIGKILL), "the run failed: what it said is above"
        return status == 0

    def _told(self, seconds: float) -> int | None:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        line = self.process.stdout.readline()
        assert line, "the nursery ended: what it said is above"
        return int(line)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def home() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def whole(home: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert home.live(folder)
    return folder


@pytest.fixture(params=[False, True], ids=["here", "background"])
def background(request: pytest.FixtureRequest) -> bool:
    """Where checkpoints are written."""
    return bool(request.param)


def told(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(folder)]


def thought(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    out = []
    for step, trace in read_traces(folder):
        trace.cost = replace(trace.cost, seconds=0.0)
        out.append((step, trace_to_json(trace)))
    return out


def kept(folder: Path) -> dict[str, bytes]:
    """Every file of every checkpoint."""
    files = (p for folder in checkpoints(folder) for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def same(folder: Path, whole: Path) -> None:
    assert told(folder) == told(whole)
    assert thought(folder) == thought(whole)
    ours = kept(folder)  # there may be more: killed while older ones were removed
    assert [name for name, content in kept(whole).items() if ours.get(name) != content] == []


def test_run_has_enough_to_kill(whole: Path) -> None:
    rows = told(whole)
    assert [m["step"] for m in rows] == list(range(9)) and len({m["grad_norm"] for m in rows}) > 6
    assert int(Path(f"{whole}.fallen").read_text()) > 5 * 10, "five saves, each of many moments"


def test_run_killed_at_any_moment_ends_the_same(background: bool, home: Nursery, whole: Path, tmp_path: Path) -> None:
    began = time.perf_counter()
    assert home.live(tmp_path / "timed", background=background)
    length = time.perf_counter() - began
    draw, kills = random.Random(1), 0
    for turn in range(4 * KILLS):
        folder, died = tmp_path / f"run-{turn}", 0
        while died < CHAIN and not home.live(folder, seconds=draw.uniform(0, length), background=background):
            died += 1
        kills += died
        assert home.live(folder, background=background)
        same(folder, whole)
        if kills >= KILLS:
            return
    pytest.fail(f"only {kills} of {4 * KILLS} lives ended early")


def test_run_killed_inside_a_save_ends_the_same(background: bool, home: Nursery, whole: Path, tmp_path: Path) -> None:
    moments = int(Path(f"{whole}.fallen").read_text())
    draw, kills, inside = random.Random(2), 0, 0
    for turn in range(4 * KILLS):
        folder, died = tmp_path / f"run-{turn}", 0
        while died < CHAIN and not home.live(folder, grains=draw.randint(1, moments), background=background):
            died += 1
            inside += any(p.suffix in (".new", ".old") for p in (folder / "checkpoints").glob("step-*"))
        kills += died
        assert home.live(folder, background=background)
        same(folder, whole)
        if kills >= KILLS:
            break
    assert kills >= KILLS and inside > KILLS // 2, f"{kills} kills, {inside} of them in the middle of a save"


def test_run_killed_inside_a_block_of_traces_ends_the_same(
    background: bool, home: Nursery, whole: Path, tmp_path: Path
) -> None:
    draw, torn = random.Random(3), 0
    for turn in range(KILLS // 2):
        folder, died = tmp_path / f"run-{turn}", 0
        shares = [0.0, 1.0, *(draw.random() for _ in range(CHAIN - 2))]
        for share in draw.sample(shares, CHAIN):
            if home.live(folder, background=background, block=draw.randint(1, 6), share=share):
                break
            died += 1
            if (folder / TRACES_FILE).exists():
                with BlockReader(folder / TRACES_FILE) as reader:
                    torn += reader.size > 0 and reader.last_block() is None
        assert died
        assert home.live(folder, background=background)
        same(folder, whole)
    assert torn > KILLS // 4, f"{torn} torn blocks were seen"


if __name__ == "__main__":
    nursery()
