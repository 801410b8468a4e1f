"""Data parallelism: each process computes the gradient of its shard of the work, and all of them are summed.

Every process holds the same credited traces and so the same denominators; only the forward and backward passes are
sharded. The gradients are summed, not averaged over processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ponder.train.pack import TraceChains


@dataclass(frozen=True, slots=True)
class DataParallelGroup:
    rank: int = 0
    size: int = 1

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
        return (
            here
            if self.size == 1
            else bool(self.all_reduce_named({"here": torch.tensor(float(here))}, use_max=True)["here"])
        )

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum in place over all processes."""
        for t in tensors:
            dist.all_reduce(t)

    def all_reduce_named(self, values: dict[str, Tensor], use_max: bool = False) -> dict[str, Tensor]:
        """Sum named numbers over all processes, or take the largest of each. A missing name counts as 0."""
        named: list[dict[str, float] | None] = [None] * self.size
        dist.all_gather_object(named, {name: float(v) for name, v in values.items()})
        every = [n or {} for n in named]
        join = max if use_max else sum
        names = {name: None for n in every for name in n}
        return {name: torch.tensor(join([n.get(name, 0.0) for n in every]), dtype=torch.float64) for name in names}


SINGLE_PROCESS = DataParallelGroup()


def current_group() -> DataParallelGroup:
    """The initialised process group (torchrun, or torch.distributed.init_process_group), for `Learner(process_group=)`.

    The training jobs of `ponder.pipelines` run in a single process; this is for a training loop of your own.
    """
    return (
        DataParallelGroup(dist.get_rank(), dist.get_world_size())
        if dist.is_available() and dist.is_initialized()
        else SINGLE_PROCESS
    )
