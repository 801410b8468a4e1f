"""`--cluster` on the command line: ranks in slots, started again when one is killed, and what is refused."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ponder.cli import cluster_ranks, main
from ponder.cli.cluster_ranks import rank_variables, run_cluster_ranks
from ponder.cli.rank_launcher import RANKS_FOLDER, RankFailed
from ponder.cluster.places import LOST, LocalPlace, LocalSlot
from ponder.cluster.ray_session import ensure_token, require_ray, token_path
from ponder.errors import UsageError
from ponder.models.replicas.ledger import read_ledger
from ponder.runs import read_metrics, read_traces

from .conftest import CommandResult
from .test_ranks import model_weights

HEAD = """
import os, sys, time
rank = int(os.environ.get("RANK", 0))
def goodbye():
    open(sign, "w").close()
def lose_other():
    while not os.path.exists(sign):
        time.sleep(0.01)
    sys.exit(75)
"""


class ProgramPlace(LocalPlace):
    """Its ranks run a program of the test: `rank` and `start`, from 0, are there, and `lose_other()`, by which rank 0
    ends as a rank does whose peer is gone, once a peer has said `goodbye()`."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder, self.starts, self.released = program, folder, -1, 0
        self.argvs: list[list[str]] = []

    def reserve(self, count: int, *, gpu: bool, spread: bool = False, size: int = 1) -> list[LocalSlot]:
        self.starts += 1
        slots = super().reserve(count, gpu=gpu, spread=spread, size=size)
        for slot in slots:
            self._replace(slot)
        return slots

    def _replace(self, slot: LocalSlot) -> None:
        start, release = slot.start, slot.release
        head = f"start = {self.starts}; sign = {str(self.folder / f'gone-{self.starts}')!r}\n{HEAD}"

        def start_program(argv: Sequence[str], environment: dict[str, str], folder: str = "") -> int:
            assert argv[:2] == ["-m", "ponder"]
            self.argvs.append(list(argv[2:]))
            return start(["-I", "-c", head + self.program], environment, folder)

        def count_release() -> None:
            self.released += 1
            release()

        slot.start, slot.release = start_program, count_release  # type: ignore[method-assign,assignment]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "job.json").write_text("{}")
    return tmp_path


def test_killed_rank_is_started_again_with_all_others(run_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "print('rank', rank, 'start', start, flush=True)\n"
    program += "if not start: lose_other() if rank == 0 else (goodbye(), os.kill(os.getpid(), 9))"
    place = ProgramPlace(program, run_folder)
    assert run_cluster_ranks(2, ["run"], place, run_folder, gpu=False) == 0
    shown = capfd.readouterr()
    assert "rank 0 start 1" in shown.out and "rank 1" not in shown.out
    assert (
        "rank 1 ended with exit code -9" in shown.err and "starting all again" in shown.err and "(1 of 3)" in shown.err
    )
    assert place.starts == 1 and place.released == 4
    assert "rank 1 start 0" in (run_folder / RANKS_FOLDER / "rank-1.log").read_text()


def test_rank_that_is_killed_every_time_ends_the_job(run_folder: Path) -> None:
    program = "print('last words', flush=True); (goodbye(), os.kill(os.getpid(), 9)) if rank else lose_other()"
    place = ProgramPlace(program, run_folder)
    with pytest.raises(RankFailed, match=r"(?s)rank 1 ended with exit code -9.*last words"):
        run_cluster_ranks(2, [], place, run_folder, gpu=False)
    assert place.starts == cluster_ranks.MAX_RESTARTS


def test_signal_is_passed_on_and_no_restart(run_folder: Path) -> None:
    """The ranks say by files that they listen; then this process, which waits for them, gets the signal."""
    place = ProgramPlace(
        "import pathlib, signal; signal.signal(15, lambda *_: sys.exit(143));"
        "pathlib.Path(f'ready-{rank}').touch(); time.sleep(60)",
        run_folder,
    )

    def stop() -> None:
        deadline = time.monotonic() + 60
        while not all((run_folder / f"ready-{i}").exists() for i in range(2)) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.chdir(run_folder):
        threading.Thread(target=stop).start()
        assert run_cluster_ranks(2, [], place, run_folder, gpu=False) == 143
    assert place.starts == 0


def test_restart_leaves_out_the_flag_that_refuses_runs(run_folder: Path) -> None:
    place = ProgramPlace("start or os.kill(os.getpid(), 9)", run_folder)
    assert run_cluster_ranks(1, ["run", "x", "--no-resume"], place, run_folder, gpu=False) == 0
    assert place.argvs == [["run", "x", "--no-resume"], ["run", "x"]]


def test_error_of_a_rank_is_not_tried_again(run_folder: Path) -> None:
    place = ProgramPlace("lose_other() if rank == 0 else (goodbye(), sys.exit('no such file'))", run_folder)
    with pytest.raises(RankFailed, match=r"(?s)rank 1 ended with exit code 1.*no such file"):
        run_cluster_ranks(2, [], place, run_folder, gpu=False)
    assert place.starts == 0
    assert (
        run_cluster_ranks(1, [], ProgramPlace("sys.exit(2)", run_folder), run_folder, gpu=False) == 2
    )  # rank 0 said why itself


def test_lost_slot_is_named(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ProgramPlace("time.sleep(60)", run_folder)
    monkeypatch.setattr(cluster_ranks, "MAX_RESTARTS", 0)
    monkeypatch.setattr(LocalSlot, "poll", lambda self: LOST)
    monkeypatch.setattr(LocalSlot, "lost_reason", "the place on 10.0.0.7 is gone: no answer")
    with pytest.raises(RankFailed, match=r"(?s)rank 0 ended with its place on the cluster is gone.*10\.0\.0\.7"):
        run_cluster_ranks(2, [], place, run_folder, gpu=False)


def test_variables_of_ranks() -> None:
    slots = LocalPlace().reserve(2, gpu=False)
    first, second = rank_variables(slots, own_gpus=False)
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "1", "2")
    assert first["MASTER_ADDR"] == "127.0.0.1" and first["MASTER_PORT"] == second["MASTER_PORT"]
    assert rank_variables(slots, own_gpus=True)[1]["LOCAL_RANK"] == "0"
    assert "RANK" not in rank_variables(slots[:1], own_gpus=True)[0]


def test_what_cannot_be_placed_is_refused(
    ponder: Callable[..., CommandResult], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONDER_CACHE", str(here / "cache"))
    for words, message in (
        (("run", "tiny.py", "--cluster", "local", "--ranks", "0"), "--ranks is 0"),
        (("plan", "tiny.py", "--cluster", "local"), "leave out --cluster"),
        (("eval", "addition", "--cluster", "local"), "no processes to place on a cluster: give --replicas"),
        (("run", "tiny.py", "--cluster", "here"), "no address of a cluster: give HOST:PORT"),
        (("cluster", "status"), "no cluster was started here"),
        (("cluster", "down"), "no Ray runs here"),
        (("cluster", "down", "127.0.0.1:1"), "leave the address out"),
        (("cluster", "status", "--port", "7"), "--port is for `ponder cluster up`"),
        (("cluster", "up", "--cpus", "-1"), "--cpus is -1"),
        (("cluster", "up", "10.0.0.7:6379", "--port", "7"), "--port is the head's"),
        (("cluster", "up", "127.0.0.1:6379"), "this machine's own"),
    ):
        result = ponder(*words)
        assert result.code == 2 and message in result.err, (words, result.err)


def test_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'ponder\[ray\]'"):
        require_ray()


def test_token_is_made_once_and_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "ray" / "token"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    assert ensure_token() == token_path() == tmp_path / "ray" / "token"
    token = token_path().read_text()
    assert len(token) == 64 and token_path().stat().st_mode & 0o777 == 0o600
    ensure_token()
    assert token_path().read_text() == token
    monkeypatch.setenv("RAY_AUTH_TOKEN", "given")
    assert ensure_token() is None


@pytest.mark.nightly
def test_recipe_in_slots_is_the_same_training(here: Path) -> None:
    assert main(["run", "tiny.py", "--run", "plain"]) == 0
    assert main(["run", "tiny.py", "--run", "placed", "--ranks", "2", "--cluster", "local"]) == 0
    for mine, row in zip(read_metrics(here / "placed"), read_metrics(here / "plain"), strict=True):
        assert mine["reward"] == row["reward"] and mine["loss"] == pytest.approx(row["loss"], abs=1e-4)
    assert model_weights(here / "placed").keys() == model_weights(here / "plain").keys()


@pytest.mark.nightly
def test_evaluation_on_placed_replicas_has_the_same_answers(here: Path, trained: Path) -> None:
    words = ["eval", "addition", "--model", str(trained), "--limit", "6", "--max-tokens", "3", "--temperature", "1"]
    assert main([*words, "--run", "plain"]) in (0, 3)
    assert main([*words, "--run", "placed", "--replicas", "1", "--cluster", "local"]) in (0, 3)
    texts = [
        sorted((trace.problem.id, *(step.text for step in trace.steps)) for _, trace in read_traces(here / run))
        for run in ("plain", "placed")
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 6
    counts = read_ledger(here / "placed" / "replicas" / "ledger.jsonl")
    assert counts is not None and counts.asked == counts.answered == 6
