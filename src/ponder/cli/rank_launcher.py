"""`--ranks N`: start the processes of a training job on this machine and wait for them, as torchrun does.

Rank 0 has the terminal. What the others write is kept; if one of them fails, its end is shown, and the last words of
each stand in the run directory. On a cluster the processes are started by cluster_ranks.py, and waited for here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol

from ponder import signals
from ponder.cli import EXIT_RANK_LOST
from ponder.cluster.places import LOST, how_it_ended
from ponder.cluster.process_host import PIPE_VARIABLE, free_port
from ponder.errors import RunError, UsageError

MAX_RANKS = 1024
END_SECONDS = 10.0  # that ranks have to end after one of them failed
# Of a rank that runs, is done, or was stopped: rank 0 may still save when the others have stopped.
ENDED_WELL = (None, 0, *(128 + number for number in signals.STOP_SIGNALS))
RANKS_FOLDER = "ranks"  # in the run directory, once a rank has failed: what each wrote last
MAX_KEPT_BYTES = 1 << 20  # of what a rank wrote
_POLL_SECONDS = 0.1
_SHOWN_LINES = 12  # of what a failed rank wrote last
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


class Rank(Protocol):
    """One process of a job."""

    number: int

    def poll(self) -> int | None: ...
    def send_signal(self, number: int) -> None: ...
    def last_lines(self) -> str:
        """The end of what it wrote, unless the terminal has it."""
        ...

    def kept_output(self) -> bytes:
        """What it wrote, or the end of that; empty where only the terminal had it."""
        ...

    def end(self) -> None:
        """Kill it, and free what it holds."""
        ...


class RankFailed(RunError):
    """A rank ended, and training with it. `code`: its exit code, negative for a signal."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class LocalRank:
    """A child of this process, and the file that takes what it writes."""

    def __init__(self, number: int, size: int, port: int, pipe: int, argv: Sequence[str]) -> None:
        self.number = number
        self.output: IO[bytes] | None = tempfile.TemporaryFile() if number else None  # noqa: SIM115
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        which = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size), PIPE_VARIABLE: str(pipe)}
        threads = str(max(1, (os.cpu_count() or 1) // size))
        usual = {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ponder", *argv],
            env={**usual, **os.environ, **where, **which},
            stdin=subprocess.DEVNULL if number else None,
            stdout=self.output,
            stderr=subprocess.STDOUT if number else None,
            pass_fds=[pipe],
            start_new_session=True,  # Ctrl-C reaches the ranks once, through this process
        )

    def poll(self) -> int | None:
        return self.process.poll()

    def send_signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def last_lines(self) -> str:
        return last_lines(self.kept_output())

    def kept_output(self) -> bytes:
        if self.output is None:
            return b""
        self.output.seek(max(0, self.output.seek(0, os.SEEK_END) - MAX_KEPT_BYTES))
        return self.output.read()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.output is not None:
            self.output.close()


def last_lines(output: bytes) -> str:
    lines = output.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines[-_SHOWN_LINES:] if line.strip())


def keep_output(ranks: Sequence[Rank], run_folder: Path) -> None:
    """The last words of each, in the run directory: if rank 0 came as far as making it."""
    if not (run_folder / "job.json").is_file():
        return
    (run_folder / RANKS_FOLDER).mkdir(exist_ok=True)
    for rank in ranks:
        code = rank.poll()
        how = "ended because another rank failed" if code is None else f"ended with exit code {code}"
        with (run_folder / RANKS_FOLDER / f"rank-{rank.number}.log").open("ab") as file:
            file.write(rank.kept_output() + f"\n({how})\n".encode())


def run_ranks(count: int, argv: Sequence[str], device: str, run_folder: Path) -> int:
    """Run this command line in so many processes. The exit code is that of rank 0."""
    check_rank_count(count, device)
    port = free_port("127.0.0.1")
    ranks: list[Rank] = []
    read_end, write_end = os.pipe()
    with forwarded_signals(ranks):
        try:
            for number in range(count):
                ranks.append(LocalRank(number, count, port, read_end, argv))
            return wait_for_ranks(ranks)
        except RankFailed:
            keep_output(ranks, run_folder)
            raise
        finally:
            for rank in ranks:
                rank.end()
            os.close(read_end)
            os.close(write_end)


def check_rank_count(count: int, device: str) -> None:
    if not 1 <= count <= MAX_RANKS:
        raise UsageError(f"--ranks is {count}; it is a number of processes, from 1 to {MAX_RANKS}")
    if device != "cpu":
        import torch

        from ponder.train.ranks import check_gpu_count

        check_gpu_count(count, torch.cuda.device_count())


def wait_for_ranks(ranks: Sequence[Rank]) -> int:
    """Until all have ended: the exit code of rank 0. Once one fails the others, which would wait for it, are given some
    seconds."""
    deadline = float("inf")
    codes = [rank.poll() for rank in ranks]
    while None in codes:
        if deadline == float("inf") and any(code not in ENDED_WELL for code in codes):
            deadline = time.monotonic() + END_SECONDS
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
        codes = [rank.poll() for rank in ranks]
    failed = next((i for i, code in enumerate(codes) if code not in (*ENDED_WELL, EXIT_RANK_LOST)), None)
    if failed is None or (failed == 0 and (codes[0] or 0) > 0):
        return codes[0] or 0  # it said why itself
    text, code = ranks[failed].last_lines(), codes[failed] or 0
    how = how_it_ended(code) if code == LOST else f"exit code {code}"
    raise RankFailed(
        f"rank {failed} ended with {how}, and training with it; the last checkpoint"
        f" stands{':' if text else ''}\n{text}".rstrip(),
        code,
    )


@contextmanager
def forwarded_signals(ranks: Sequence[Rank]) -> Iterator[None]:
    """Pass stop signals on to every rank: together they save and stop; a second one ends them at once."""

    def forward(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    before: dict[int, Any] = signals.install(forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
