"""`--ranks N`: start the processes of a training job on this machine and wait for them, as torchrun does.

Rank 0 has the terminal. What the others write is kept, and its end is shown if one of them fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any

from ponder import signals
from ponder.cli import EXIT_RANK_LOST
from ponder.errors import RunError, UsageError

MAX_RANKS = 1024
END_SECONDS = 10.0  # that ranks have to end after one of them failed
# Of a rank that runs, is done, or was stopped: rank 0 may still save when the others have stopped.
ENDED_WELL = (None, 0, *(128 + number for number in signals.STOP_SIGNALS))
_POLL_SECONDS = 0.1
_SHOWN_LINES = 12  # of what a failed rank wrote last

_PIPE_VARIABLE = "PONDER_RANK_PIPE"  # a pipe that closes when the process that started the ranks ends


class Rank:
    """One process, and the file that takes what it writes."""

    def __init__(self, number: int, size: int, port: int, pipe: int, argv: Sequence[str]) -> None:
        self.number = number
        self.output: IO[bytes] | None = tempfile.TemporaryFile() if number else None  # noqa: SIM115
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        which = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size), _PIPE_VARIABLE: str(pipe)}
        threads = str(max(1, (os.cpu_count() or 1) // size))
        usual = {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ponder", *argv],
            env={**usual, **os.environ, **where, **which},
            stdin=subprocess.DEVNULL if number else None,
            stdout=self.output,
            stderr=subprocess.STDOUT if number else None,
            pass_fds=[pipe],
            start_new_session=True,  # Ctrl-C reaches the ranks once, through this process
        )

    def last_lines(self) -> str:
        """The end of what it wrote."""
        if self.output is None:
            return ""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines[-_SHOWN_LINES:] if line.strip())


def run_ranks(count: int, argv: Sequence[str], device: str) -> int:
    """Run this command line in so many processes. The exit code is that of rank 0."""
    check_rank_count(count, device)
    port = _free_port()
    ranks: list[Rank] = []
    read_end, write_end = os.pipe()
    with _forwarded_signals(ranks):
        try:
            for number in range(count):
                ranks.append(Rank(number, count, port, read_end, argv))
            return _wait(ranks)
        finally:
            _end(ranks)
            os.close(read_end)
            os.close(write_end)


def end_with_launcher() -> None:
    """In a rank: end when the process that started it does, however that ends."""
    if not (pipe := os.environ.get(_PIPE_VARIABLE, "")).isdecimal():
        return

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(int(pipe), 1)
        os._exit(1)

    threading.Thread(target=wait, name="launcher", daemon=True).start()


def check_rank_count(count: int, device: str) -> None:
    if not 1 <= count <= MAX_RANKS:
        raise UsageError(f"--ranks is {count}; it is a number of processes, from 1 to {MAX_RANKS}")
    if device != "cpu":
        import torch

        from ponder.train.ranks import check_gpu_count

        check_gpu_count(count, torch.cuda.device_count())


def _wait(ranks: Sequence[Rank]) -> int:
    """Until all have ended. Once one fails the others, which would wait for it, are given some seconds."""
    deadline = float("inf")
    while any(rank.process.poll() is None for rank in ranks):
        if deadline == float("inf") and any(rank.process.poll() not in ENDED_WELL for rank in ranks):
            deadline = time.monotonic() + END_SECONDS
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    failed = next((rank for rank in ranks if rank.process.poll() not in (*ENDED_WELL, EXIT_RANK_LOST)), None)
    code = ranks[0].process.poll() or 0
    if failed is None or (failed is ranks[0] and code > 0):
        return code  # it said why itself
    text = failed.last_lines()
    raise RunError(
        f"rank {failed.number} ended with exit code {failed.process.poll()}, and training with it; the last checkpoint"
        f" stands{':' if text else ''}\n{text}".rstrip()
    )


def _end(ranks: Sequence[Rank]) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.kill()
        rank.process.wait()
        if rank.output is not None:
            rank.output.close()


@contextmanager
def _forwarded_signals(ranks: Sequence[Rank]) -> Iterator[None]:
    """Pass stop signals on to every rank: together they save and stop; a second one ends them at once."""

    def forward(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(number)

    before: dict[int, Any] = signals.install(forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
