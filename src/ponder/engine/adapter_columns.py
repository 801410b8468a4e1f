"""LoRA adapters inside CUDA graphs: their factors lie in buffers that stay in place, each adapter in its own columns.

A fused layer computes W x, and `triton_kernels.add_low_rank` adds scale B A x with the columns of each token's adapter.
So tokens of different adapters, and of none, share one graph. The weights are not merged: W + B A rounded to bfloat16
loses every update that is smaller than the rounding of W, and the learner multiplies the factors separately, too.

Shapes: P parts of a fused layer (q, k, v), C columns, I inputs, O outputs, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ponder.engine.adapters import Adapters, LoRAPairs
from ponder.engine.fused_weights import FusedLinear, FusedWeights
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.nets.power_of_two import next_power_of_two

OUTPUTS_PER_TILE = 64  # outputs of one program
MAX_COLUMNS = 512  # ranks of the adapters of one batch, summed; more of them run without a graph
_MIN_COLUMNS = 16  # the least that a GPU's matrix unit multiplies


@dataclass(slots=True)
class LowRank:
    """The factors of a fused layer. A tile is (first output, outputs, part)."""

    a_PCI: Tensor
    b_OC: Tensor
    tiles: Tensor


@dataclass(slots=True)
class AdapterRows:
    """For each token the columns of its adapter, `first` to `last`, and the scale of the update."""

    first: Tensor
    last: Tensor
    scale: Tensor

    @classmethod
    def zeros(cls, rows: int, device: torch.device) -> AdapterRows:
        """No token has an adapter."""
        first, last = (torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(2))
        return cls(first, last, torch.zeros(rows, device=device))

    def head(self, rows: int) -> AdapterRows:
        return AdapterRows(self.first[:rows], self.last[:rows], self.scale[:rows])

    def append(self, other: AdapterRows) -> AdapterRows:
        return AdapterRows(*(torch.cat(pair) for pair in zip(self.tensors(), other.tensors(), strict=True)))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.first, self.last, self.scale


class AdapterColumns:
    """The columns of a runner's adapters. The empty name is the adapter that the network is trained with, if any.

    `generation` grows when the buffers are replaced: graphs that read the old ones must go. `layout` grows when columns
    are moved: rows that name the old ones must be written again.
    """

    def __init__(self, net: Decoder, weights: FusedWeights, adapters: Callable[[], Adapters | None]) -> None:
        self.net, self.linears, self._adapters = net, weights.linears(), adapters
        self.generation = self.layout = 0  # 0: nothing is in the buffers yet
        self.columns = 0
        self._places: dict[str, tuple[int, int, float]] = {}  # first and last column, scale
        self._parts: list[list[bool]] = [[False] * len(linear.parts) for linear in self.linears]
        self._stale = True  # the factors have changed since they were copied

    def mark_stale(self) -> None:
        """Weights or adapters have changed: they are copied again before the next use."""
        self._stale = True

    def fits(self, names: Collection[str]) -> bool:
        """Whether the adapters of a batch fit in the buffers together."""
        used = self._used(names)
        if any(used) and self._attached:
            return False  # an adapter on top of the one in training: only the plain passes know how
        return sum(self._rank(name) for name in used) <= MAX_COLUMNS

    def hold(self, names: Collection[str]) -> bool:
        """Have the factors of these adapters in the buffers. False: none of the names is an adapter."""
        used = self._used(names)
        if used and (self._stale or not self._places.keys() >= set(used)):
            others = [name for name in self._places if name not in used and self._is_loaded(name)]
            while others and not self.fits([*used, *others]):
                others.pop()
            self._lay_out([*used, *others])
        return bool(used)

    def rows(self, names: Sequence[str], sizes: Sequence[int]) -> AdapterRows | None:
        """Rows for runs of tokens: `sizes[i]` tokens use the adapter `names[i]`. None: no token has an adapter."""
        if not self.hold(set(names)):
            return None
        device, tables = self.net.device, self.tables(names)
        return AdapterRows(*(torch.from_numpy(np.repeat(table, sizes)).to(device) for table in tables))

    def tables(self, names: Sequence[str]) -> tuple[Any, Any, Any]:
        """First and last columns and scales of adapters that are in the buffers; zeros where a name is none."""
        places = [self._places.get(name, (0, 0, 0.0)) for name in names]
        first, last, scale = zip(*places, strict=True)
        return np.asarray(first, np.int32), np.asarray(last, np.int32), np.asarray(scale, np.float32)

    @property
    def _attached(self) -> bool:
        return lora.has_adapter(self.net)

    def _used(self, names: Iterable[str]) -> list[str]:
        return sorted({name for name in names if name or self._attached})

    def _is_loaded(self, name: str) -> bool:
        return self._attached if not name else name in (self._adapters() or ())

    def _factors(self, name: str) -> tuple[LoRAPairs, float]:
        """A and B by layer, and the scale of the update."""
        if not name:
            return lora.factors(self.net)
        return self._named(name), 1.0  # their B is scaled

    def _named(self, name: str) -> LoRAPairs:
        adapters = self._adapters()
        assert adapters is not None
        return adapters.device_pairs(name)

    def _rank(self, name: str) -> int:
        if not name:
            return lora.rank(self.net)
        a, _ = next(iter(self._named(name).values()))
        return len(a)

    def _lay_out(self, names: Sequence[str]) -> None:
        """Give each adapter its columns, and copy its factors there."""
        factors = {name: self._factors(name) for name in names}
        places: dict[str, tuple[int, int, float]] = {}
        end = 0
        for name in names:
            places[name] = end, end + self._rank(name), factors[name][1]
            end = places[name][1]
        self._allocate(end, [pairs for pairs, _ in factors.values()])
        if places != self._places:
            self._places, self.layout = places, self.layout + 1
        held = [linear.low_rank for linear in self.linears if linear.low_rank is not None]
        torch._foreach_zero_([low.b_OC for low in held])
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for name, (pairs, _) in factors.items():
            for linear in self.linears:
                _collect_copies(linear, pairs, places[name][0], targets, sources)
        torch._foreach_copy_(targets, sources)
        self._stale = False

    def _allocate(self, columns: int, adapters: Sequence[LoRAPairs]) -> None:
        """Buffers for so many columns in every layer that one of the adapters changes. They never shrink."""
        columns = max(self.columns, _MIN_COLUMNS, next_power_of_two(columns))
        parts = [
            [old or any(name in pairs for pairs in adapters) for old, (name, _) in zip(olds, linear.parts, strict=True)]
            for olds, linear in zip(self._parts, self.linears, strict=True)
        ]
        if columns == self.columns and parts == self._parts:
            return
        self.columns, self._parts, self.generation = columns, parts, self.generation + 1
        device, dtype = self.net.device, self.net.dtype
        for linear, used in zip(self.linears, parts, strict=True):
            if not any(used):
                continue
            outputs = sum(size for _, size in linear.parts)
            linear.low_rank = LowRank(
                torch.zeros(len(used), columns, linear.inputs, device=device, dtype=dtype),
                torch.zeros(outputs, columns, device=device, dtype=dtype),
                torch.tensor(_tiles([size for _, size in linear.parts], used), dtype=torch.int32, device=device),
            )


def _collect_copies(linear: FusedLinear, pairs: LoRAPairs, column: int, to: list[Tensor], source: list[Tensor]) -> None:
    low, output = linear.low_rank, 0
    for part, (name, size) in enumerate(linear.parts):
        if name in pairs and low is not None:
            a, b = pairs[name]
            to += [
                low.a_PCI[part, column : column + len(a)],
                low.b_OC[output : output + size, column : column + len(a)],
            ]
            source += [a.detach(), b.detach()]
        output += size


def _tiles(sizes: Sequence[int], used: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Tiles of the outputs of these parts; none lies in two of them."""
    starts = np.cumsum([0, *sizes]).tolist()
    return [
        (starts[part] + first, min(OUTPUTS_PER_TILE, size - first), part)
        for part, size in enumerate(sizes)
        if used[part]
        for first in range(0, size, OUTPUTS_PER_TILE)
    ]
