"""LoRA adapters inside CUDA graphs, in one of two ways; the graphs stay when an adapter changes.

Columns: the factors of all adapters lie in buffers that stay in place, each adapter in its own columns. A fused layer
computes W x, and `triton_kernels.add_low_rank` adds scale B A x with the columns of each token's adapter. So tokens of
different adapters, and of none, share one graph, and what is computed is what the learner computes.

Merged: where all tokens of a pass have the same adapter and the network is small, they are multiplied with a copy of
the matrices to which B A was added in float32. One more rounding, of W + B A, and no more kernels: in a small network
those of the columns take as long as the products themselves.

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
MAX_MERGED_BYTES = 1 << 30  # of the matrices, up to which a network is small
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


class MergedWeights:
    """In place of rows: all tokens use the merged matrices."""


MERGED = MergedWeights()
PassAdapters = AdapterRows | MergedWeights | None  # of the tokens of a pass


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
        self._merged_name: str | None = None  # whose update the merged matrices have
        self._merged_key = 0
        sizes = [sum(outputs for _, outputs in linear.parts) * linear.inputs for linear in self.linears]
        self._can_merge = sum(sizes) * net.dtype.itemsize <= MAX_MERGED_BYTES and not weights.quantization

    def mark_stale(self) -> None:
        """Weights or adapters have changed: they are copied again before the next use."""
        self._stale, self._merged_name = True, None

    def fits(self, names: Collection[str]) -> bool:
        """Whether the adapters of a batch fit in the buffers together."""
        used = self._used(names)
        if any(used) and self._attached:
            return False  # an adapter on top of the one in training: only the plain passes know how
        return sum(self._rank(name) for name in used) <= MAX_COLUMNS

    def prepare(self, names: Collection[str]) -> int:
        """Make ready for a pass over tokens of these adapters. Returns what its graph depends on: 0 without adapters,
        the generation of the buffers, or a negative number for that of the merged matrices."""
        used = self._used(names)
        if not used:
            return 0
        if self._can_merge and set(names) == set(used) and len(used) == 1:
            self._merge(used[0])
            return self._merged_key
        if self._stale or not self._places.keys() >= set(used):
            others = [name for name in self._places if name not in used and self._is_loaded(name)]
            while others and not self.fits([*used, *others]):
                others.pop()
            self._lay_out([*used, *others])
        return self.generation

    def of_tokens(self, names: Sequence[str], sizes: Sequence[int]) -> PassAdapters:
        """For a pass over runs of tokens: `sizes[i]` tokens use the adapter `names[i]`."""
        key = self.prepare(set(names))
        return None if not key else MERGED if key < 0 else self.rows(names, sizes)

    def is_current(self, key: int) -> bool:
        """Whether a graph with this key reads buffers that are still in use."""
        return key in (0, self.generation, self._merged_key)

    def rows(self, names: Sequence[str], sizes: Sequence[int]) -> AdapterRows:
        """The columns of runs of tokens whose adapters are in the buffers."""
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

    def _merge(self, name: str) -> None:
        """Have matrices with this adapter's update in the layers that it changes."""
        if self._merged_name == name:
            return
        pairs, scale = self._factors(name)
        for linear in self.linears:
            is_changed = any(part in pairs for part, _ in linear.parts)
            if linear.merged is None:
                if not is_changed:
                    continue  # the matrix itself is multiplied
                linear.merged = torch.empty_like(linear.weight)
                self._merged_key -= 1
            _merge_linear(linear, linear.merged, pairs, scale)
        self._merged_name = name

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


def _merge_linear(linear: FusedLinear, out: Tensor, pairs: LoRAPairs, scale: float) -> None:
    """Write a matrix with the updates of its parts added; summed in float32, rounded once."""
    weight, output = linear.weight, 0
    for name, size in linear.parts:
        own, target = weight[output : output + size], out[output : output + size]
        if name in pairs:
            a, b = pairs[name]
            torch.addmm(own, b, a, alpha=scale, out=target)
        else:
            target.copy_(own)
        output += size


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
