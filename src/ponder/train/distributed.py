"""Data parallelism: each process computes the gradient of its shard of the work, and all of them are summed.

Every process holds the same credited traces and so the same denominators; only the forward and backward passes are
sharded. The gradients are summed, not averaged over processes. Only tensors and bytes of our own cross the wire.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ponder import rank_env
from ponder.errors import UsageError
from ponder.train.pack import TraceChains


@dataclass(frozen=True, slots=True)
class DataParallelGroup:
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which owns the run directory."""
        return self.rank == 0

    def shard(self, work: list[TraceChains]) -> list[TraceChains]:
        """This process's shard. The largest pieces are dealt first, each to the process with the least work so far."""
        if self.size == 1:
            return work
        load = [0] * self.size
        share: list[int] = []
        for i in sorted(range(len(work)), key=lambda i: -work[i].tokens()):
            least = load.index(min(load))
            load[least] += work[i].tokens()
            if least == self.rank:
                share.append(i)
        return [work[i] for i in sorted(share)]

    def any(self, here: bool) -> bool:
        return here if self.size == 1 else bool(self.max_of(float(here)))

    def max_of(self, number: float) -> float:
        """The largest of a number over all processes; NaN if one is."""
        values = self._gather_numbers(number)
        return float(np.max(values))

    def sum_of(self, number: float) -> float:
        """The sum of a number over all processes, in the order of ranks: the same bits everywhere."""
        return float(sum(self._gather_numbers(number)))

    def _gather_numbers(self, number: float) -> list[float]:
        if self.size == 1:
            return [number]
        out = [torch.zeros(1, dtype=torch.float64) for _ in range(self.size)]
        dist.all_gather(out, torch.tensor([number], dtype=torch.float64))
        return [float(t) for t in out]

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum in place over all processes."""
        if self.size > 1:
            sum_in_place(tensors)

    def all_reduce_named(self, values: dict[str, Tensor], use_max: bool = False) -> dict[str, Tensor]:
        """Sum named numbers over all processes, or take the largest of each. A missing name counts as 0."""
        named = {name: float(v) for name, v in values.items()}
        every: list[dict[str, float]] = [json.loads(b) for b in self.all_gather_bytes(json.dumps(named).encode())]
        join = max if use_max else sum
        names = {name: None for n in every for name in n}
        return {name: torch.tensor(join([n.get(name, 0.0) for n in every]), dtype=torch.float64) for name in names}

    def all_gather_bytes(self, payload: bytes) -> list[bytes]:
        """The payload of every process, by rank."""
        if self.size == 1:
            return [payload]
        sizes = [int(n) for n in self._gather_numbers(float(len(payload)))]
        mine = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        mine[: len(payload)] = torch.frombuffer(bytearray(payload or b"\0"), dtype=torch.uint8)[: len(payload)]
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine)
        return [bytes(t[:n].numpy()) for t, n in zip(every, sizes, strict=True)]

    def broadcast_bytes(self, payload: bytes) -> bytes:
        """The payload of rank 0."""
        return self.all_gather_bytes(payload if self.is_main else b"")[0]


def sum_in_place(tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Sum tensors of one type over the ranks of a group, all in one call: hundreds of calls would each cost the host a
    launch."""
    from torch.distributed.distributed_c10d import _coalescing_manager  # a torch without distributed has none

    if tensors:
        with _coalescing_manager(group):
            for t in tensors:
                dist.all_reduce(t, group=group)


SINGLE_PROCESS = DataParallelGroup()


@dataclass(frozen=True, slots=True)
class ShardMesh:
    """Ranks among which a network is sharded. Every `shard_size` ranks in a row hold one copy of it together: all of
    them with FSDP, fewer with HSDP, whose copies learn the same."""

    group: DataParallelGroup = SINGLE_PROCESS
    shard_size: int = 1

    @classmethod
    def over(cls, group: DataParallelGroup, shard_size: int) -> ShardMesh:
        """0: one copy over all ranks. So too where there are fewer ranks than a copy was meant for."""
        size = min(shard_size or group.size, group.size)
        if group.size % size:
            raise UsageError(
                f"{group.size} ranks cannot hold copies of {size} each: give a --shard-size that divides the ranks"
            )
        return cls(group, size)

    @property
    def copies(self) -> int:
        return self.group.size // self.shard_size

    @property
    def rank(self) -> int:
        """Among those that hold one copy."""
        return self.group.rank % self.shard_size

    @property
    def writes(self) -> bool:
        """Whether this rank's rows go into checkpoints: those of the first copy do."""
        return self.group.rank < self.shard_size


NOT_SHARDED = ShardMesh()


def current_group() -> DataParallelGroup:
    """The initialised process group, for `Learner(process_group=)`. This process alone without one, and where it works
    alone for a while."""
    joined = dist.is_available() and dist.is_initialized() and not rank_env.is_only_process()
    return DataParallelGroup(dist.get_rank(), dist.get_world_size()) if joined else SINGLE_PROCESS
