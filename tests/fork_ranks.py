"""Fork the ranks of a training job from a process that has imported torch, on gloo over the loopback device."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

SECONDS = 900.0  # for all processes of a program, their imports included
LOOP = "lo0" if sys.platform == "darwin" else "lo"


def fork_ranks(size: int, work: Callable[[int, int], None]) -> int:
    """Do `work(rank, size)` in so many processes, with torchrun's variables set. 1 if one fails: the others are ended,
    since they would wait for it."""
    _import_once()
    port, children = str(free_port()), list[int]()
    for rank in range(size):
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": LOOP}
                work(rank, size)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    failed = 0
    for _ in children:
        if os.wait()[1] and not failed:
            failed = 1
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, 9)
    return failed


def run_program(path: str | Path, folder: Path) -> None:
    """Run a file that forks ranks, with one thread each and without a GPU. Its processes do not outlive this call."""
    more = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = subprocess.Popen(
        [sys.executable, str(path), str(folder)], env={**os.environ, **more}, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        _, text = program.communicate(timeout=SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, text.decode()[-4000:]


def _import_once() -> None:
    """What each rank would import again."""
    import torch.distributed.fsdp  # noqa: F401


def import_peft() -> None:
    """For programs whose ranks have adapters: it takes seconds, and each rank would import it again."""
    with contextlib.suppress(ImportError):
        import peft  # noqa: F401


def free_port() -> int:
    """A port that nobody listens on. It lies below those that the system gives to connections and to port 0, so it is
    still free when the program that gets it listens."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
