"""A network whose weights are sharded over the ranks (FSDP2: Zhao et al. 2023 and torch's `fully_shard`), or over parts
of them, each of which holds a copy (hybrid sharding, HSDP: the same paper).

Each rank holds its rows of every weight, in float32 where it learns. The weights of a unit, one block or several small
ones, are gathered for the time of its pass, in the type that the network computes in, and dropped again. Gradients are
reduced to the rank that has the rows: summed, never averaged, because a loss is weighted over all tokens of a step
before it is shared out. Copies shard and gather each for itself, and their gradients are summed once for an optimiser
step, among the ranks that have the same rows: torch's own HSDP would do so after every micro-batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ponder.errors import UsageError
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder
from ponder.nets.quantized_linear import QuantizedLinear
from ponder.train.distributed import ShardMesh, sum_in_place

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# Blocks are gathered together until they have so many weights: small ones cost the host more time than the GPU.
UNIT_WEIGHTS = 64_000_000


def blocks_per_unit(config: DecoderConfig) -> int:
    """How many blocks are gathered at once; half of the network at most."""
    return min(math.ceil(UNIT_WEIGHTS / config.layer_parameter_count), math.ceil(config.layers / 2))


def shard_network(net: Decoder, shards: ShardMesh, unit_size: int = 0) -> Decoder:
    """A sharded copy of a network that is whole on every rank. One unit of blocks after the other is copied, so that
    little more than the network itself has to fit. 0: the usual number of blocks in a unit."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard  # takes a second

    if any(isinstance(module, QuantizedLinear) for module in net.modules()):
        raise UsageError("FSDP cannot shard quantised weights: leave out --fsdp, or --lora.base")
    mesh = _mesh(net.device.type, shards, dist.group.WORLD)["shards"]
    dtype = net.dtype
    mixed = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32 if dtype.itemsize < 4 else None,
        cast_forward_inputs=False,
    )
    blocks: dict[int, nn.Module] = {}
    unit_size = unit_size or blocks_per_unit(net.config)
    for first in range(0, len(net.layers), unit_size):
        given = net.layers[first : first + unit_size]
        unit = [_with_float32_masters(copy.deepcopy(block)) for block in given]
        # One rank has nothing to gather again, so the backward pass uses what the forward pass computed with.
        reshard = shards.shard_size > 1
        fully_shard(unit if len(unit) > 1 else unit[0], mesh=mesh, mp_policy=mixed, reshard_after_forward=reshard)
        blocks |= {id(block): own for block, own in zip(given, unit, strict=True)}
    whole = copy.deepcopy(net, blocks)
    _with_float32_masters(whole)
    whole.compute_dtype = dtype
    fully_shard(whole, mesh=mesh, mp_policy=mixed)
    for part in whole.modules():
        # With torch's mark, a compiled block takes numbers such as its heads for variables, and its kernels are slower.
        part._is_fsdp_managed_module = False  # type: ignore[assignment]
        if isinstance(part, FSDPModule):
            if shards.shard_size > 1:  # of one rank, torch divides by any given factor in a pass of its own
                part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums
    return whole


def sum_over_copies(rows: Sequence[Tensor], shards: ShardMesh, device: torch.device) -> None:
    """Sum this rank's rows of the gradients in place with those of the other copies."""
    if shards.copies > 1:
        sum_in_place(rows, _mesh(device.type, shards, dist.group.WORLD)["copies"].get_group())


@lru_cache(maxsize=1)
def _mesh(device: str, shards: ShardMesh, world: object) -> DeviceMesh:
    """One row for each copy. Made once for a process group: with several copies it makes groups of its own."""
    from torch.distributed.device_mesh import init_device_mesh

    if shards.copies == 1:
        return init_device_mesh(device, (shards.shard_size,), mesh_dim_names=("shards",))
    return init_device_mesh(device, (shards.copies, shards.shard_size), mesh_dim_names=("copies", "shards"))


def drop_gathered(net: Decoder) -> None:
    """Drop what a pass without gradients has gathered and kept, of the outermost weights and, with one rank, of blocks:
    an update would not reach it."""
    for part in (*net.layers, net):  # what `shard_network` shards
        if hasattr(part, "reshard"):
            part.reshard()


@torch.no_grad()
def copy_whole_weights(learned: Mapping[str, Tensor], net: Decoder, shards: ShardMesh) -> None:
    """Gather the weights that learn into the network that is whole on every rank. All ranks must call this."""
    targets = dict(net.named_parameters())
    if shards.shard_size == 1:  # this rank has all rows: gather nothing
        torch._foreach_copy_([targets[name] for name in learned], [local_rows(p) for p in learned.values()])
        return
    for name, p in learned.items():
        targets[name].copy_(whole_tensor(p))


def local_rows(t: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor, not copied; of any other tensor all."""
    rows: Tensor = getattr(t, "_local_tensor", t)  # as `to_local` without gradient; asked of all weights in each step
    return rows


def whole_tensor(t: Tensor) -> Tensor:
    """All rows of a sharded tensor, gathered; any other tensor itself."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def rows_of_rank(whole: Tensor, rank: int, size: int) -> Tensor:
    """The rows that `fully_shard` gives to a rank: equal parts, of which the last may be smaller or empty."""
    parts = torch.chunk(whole, size)
    return parts[rank] if rank < len(parts) else whole[:0]


def _with_float32_masters(module: nn.Module) -> nn.Module:
    """Weights that learn in float32; a sharded block inside is float32 already."""
    for p in module.parameters():
        if p.requires_grad and p.dtype != torch.float32:
            p.data = p.data.float()
    return module
