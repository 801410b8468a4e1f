"""The process group in which the shards of a network add up what their layers give."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ponder.nets.tensor_parallel import AllReduce, Shard


def pick_backend(devices: Sequence[torch.device]) -> str:
    """NCCL between GPUs; gloo on a CPU, and where several shards share a GPU, which NCCL refuses."""
    names = {str(device) for device in devices}
    return "nccl" if len(names) == len(devices) and all(d.type == "cuda" for d in devices) else "gloo"


def join_shards(shard: Shard, store: Path, backend: str, device: torch.device, seconds: float) -> AllReduce:
    """Join the group; returns its sum over all shards. `store`: a file that is empty or not there yet, and that other
    users cannot open. `seconds`: how long a shard waits for another before it gives up."""
    from torch._C._distributed_c10d import FileStore  # a torch without distributed has none

    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):  # they are on one machine: gloo need not be reached from others
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    dist.init_process_group(
        backend,
        store=FileStore(str(store), shard.count),
        rank=shard.rank,
        world_size=shard.count,
        timeout=timedelta(seconds=seconds),
        device_id=device if backend == "nccl" else None,
    )

    def sum_on_device(x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    def sum_on_host(x: Tensor) -> Tensor:
        """Gloo's sockets are the host's, and it has not every type everywhere."""
        total = x.to("cpu", torch.promote_types(x.dtype, torch.float32))
        dist.all_reduce(total)
        return total.to(x.device, x.dtype)

    return sum_on_device if backend == "nccl" else sum_on_host
