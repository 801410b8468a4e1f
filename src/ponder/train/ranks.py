"""Join the processes that train together: one for each GPU, or several on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from ponder import rank_env
from ponder.errors import RankLost, UsageError
from ponder.train.distributed import DataParallelGroup, current_group

MAX_WAIT = timedelta(hours=1)  # of one process for the others: some sample longer than others


@contextmanager
def join_ranks(device: str) -> Iterator[DataParallelGroup]:
    """The process group that torchrun's variables describe, or one that is there already; else this process alone.

    Each process sees one GPU. Small payloads go over gloo, gradients on a GPU over NCCL.
    """
    if rank_env.world_size() == 1 or (dist.is_available() and dist.is_initialized()):
        yield current_group()
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if take_own_gpu(device) else "gloo", timeout=MAX_WAIT)
    try:
        yield current_group()
    except RuntimeError as why:
        if isinstance(why, dist.DistError) or "gloo" in str(why):
            raise RankLost("another rank has ended, so this one cannot go on; the last checkpoint stands") from why
        raise
    dist.destroy_process_group()  # not after an error: it would wait for ranks that wait for this one


def take_own_gpu(device: str) -> bool:
    """Hide all GPUs but this rank's from torch, before it looks at them; replicas that it starts see all. False: the
    ranks train on the CPU."""
    if device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        raise UsageError("ranks train on CUDA GPUs or on the CPU: give --device cpu")
    if device == "cpu" or not (count := torch.cuda.device_count()):
        return False
    if rank_env.sees_one_gpu():  # from an earlier job of this process
        return True
    own = rank_env.local_rank()
    check_gpu_count(own + 1, count)
    if not torch.cuda.is_initialized():
        rank_env.see_one_gpu(own, count)
    else:
        torch.cuda.set_device(own)
    return True


def check_gpu_count(ranks: int, count: int) -> None:
    """Refuse more ranks on a machine than it has GPUs. Without any, ranks train on the CPU."""
    if 0 < count < ranks:
        raise UsageError(f"{ranks} ranks need a GPU each, and this machine has {count}: lower --ranks, or --device cpu")
