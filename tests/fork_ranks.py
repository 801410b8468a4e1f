"""Fork the ranks of a training job from a process that has imported torch, on gloo over the loopback device."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable

LOOP = "lo0" if sys.platform == "darwin" else "lo"


def fork_ranks(size: int, work: Callable[[int, int], None]) -> int:
    """Do `work(rank, size)` in so many processes, with torchrun's variables set. 1 if one fails: the others are ended,
    since they would wait for it."""
    _import_once()
    port, children = str(_free_port()), list[int]()
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


def _import_once() -> None:
    """What each rank would import again."""
    import torch.distributed.fsdp  # noqa: F401

    with contextlib.suppress(ImportError):
        import peft  # noqa: F401


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
