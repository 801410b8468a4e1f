"""Sequence (context) parallelism: ranks in a row share the tokens of each micro-batch, for contexts that one GPU's
activations do not fit.

Each rank computes its slice of the tokens. Only attention mixes tokens, and only keys and values are needed of others:
they are gathered in every layer, and their gradients are summed back, so the result is exact (Li et al. 2023 send them
round a ring instead; Llama 3, section 3.3.2, gathers them as here). What is read of the trained tokens is gathered too,
so that every rank has the whole loss, whatever it is made of; each takes 1 / size of it, since all of them add it up.
Shapes: T tokens of a micro-batch, t of this rank's slice, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ponder.errors import UsageError
from ponder.nets.tree_attention import path_distance
from ponder.train.distributed import DataParallelGroup


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The ranks that share the tokens of a micro-batch, of which this is one."""

    rank: int
    size: int
    ranks: tuple[int, ...]  # among all

    @classmethod
    def of(cls, world: DataParallelGroup, size: int) -> SequenceGroup | None:
        """Every `size` ranks in a row; None: each has its own tokens."""
        if size < 1 or world.size % size:
            raise UsageError(
                f"{world.size} ranks cannot share sequences among {size} each: give a --sequence-parallel that divides"
                " the ranks"
            )
        if size == 1:
            return None
        first = world.rank - world.rank % size
        return cls(world.rank - first, size, tuple(range(first, first + size)))

    @property
    def process_group(self) -> Any:
        return _subgroups(self.size, dist.get_world_size(), dist.group.WORLD)[self.ranks[0] // self.size]

    def slice_of(self, tokens: int, rank: int | None = None) -> slice:
        """The tokens of a rank: equal parts in a row, of which the last may be smaller or empty."""
        each, rank = self.slice_tokens(tokens), self.rank if rank is None else rank
        return slice(min(tokens, rank * each), min(tokens, (rank + 1) * each))

    def slice_tokens(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def gather_tokens(self, x_t: Tensor, tokens: int) -> Tensor:
        """All T rows of a tensor that is split by tokens. Gradients of a row are summed over the ranks."""
        out: Tensor = _GatherTokens.apply(x_t, self, tokens)  # type: ignore[no-untyped-call]
        return out

    def gather_rows(self, x_n: Tensor, rows_n: Tensor, count: int) -> Tensor:
        """All N rows, of which this rank has some. Every rank goes on alike with them, and takes 1 / size of the loss:
        so the gradient of this rank's rows is that many times its own."""
        out: Tensor = _GatherRows.apply(x_n, rows_n, self, count)  # type: ignore[no-untyped-call]
        return out


@lru_cache(maxsize=4)
def _subgroups(size: int, world_size: int, world: object) -> list[Any]:
    """Made once for a process group, by all ranks in the same order."""
    return [dist.new_group(list(range(first, first + size))) for first in range(0, world_size, size)]


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_t: Tensor, group: SequenceGroup, tokens: int) -> Tensor:
        ctx.group, ctx.tokens = group, tokens
        padded = x_t.new_zeros(group.slice_tokens(tokens), *x_t.shape[1:])
        padded[: len(x_t)] = x_t
        parts = [torch.empty_like(padded) for _ in range(group.size)]
        dist.all_gather(parts, padded, group=group.process_group)
        return torch.cat(parts)[:tokens]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group.process_group)
        return total[ctx.group.slice_of(ctx.tokens)].contiguous(), None, None


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_n: Tensor, rows_n: Tensor, group: SequenceGroup, count: int) -> Tensor:
        ctx.save_for_backward(rows_n)
        ctx.size = group.size
        out = x_n.new_zeros(count, *x_n.shape[1:])
        out[rows_n] = x_n
        dist.all_reduce(out, group=group.process_group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (rows_n,) = ctx.saved_tensors
        return gradients[0][rows_n] * ctx.size, None, None, None


@dataclass(slots=True)
class _TreePart:
    """The part of a tree whose queries this rank has."""

    queries: slice  # of the slice's tokens
    keys: slice  # of all tokens: the tree up to the last query
    distance_qk: Tensor | None  # as in `PaddedTreeAttention`; None: an unbranched tree, where the mask is causal


class SlicedTreeAttention:
    """Attention of this rank's queries over the keys of all ranks: `PaddedTreeAttention` by slices."""

    def __init__(
        self, lengths: Sequence[int], parents: Sequence[int], group: SequenceGroup, device: torch.device
    ) -> None:
        self.group, self.tokens = group, sum(lengths)
        self.slice = own = group.slice_of(self.tokens)
        starts: list[int] = []
        for parent in parents:
            starts.append(0 if parent < 0 else starts[parent] + lengths[parent])
        positions = torch.cat([torch.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)])
        self.positions_T = positions.to(device)  # of all tokens
        self._parts: list[_TreePart] = []
        roots, first = [s for s, p in enumerate(parents) if p < 0] + [len(parents)], 0
        for a, b in pairwise(roots):
            end = first + sum(lengths[a:b])
            low, high = max(first, own.start), min(end, own.stop)
            if low < high:
                distance = None
                if not _is_unbranched(parents[a:b], a):
                    whole = path_distance(lengths[a:b], [p - a for p in parents[a:b]], positions[first:end])
                    distance = whole[low - first : high - first, : high - first].to(device)
                self._parts.append(_TreePart(slice(low - own.start, high - own.start), slice(first, high), distance))
            first = end

    def __call__(
        self, layer: int, q_tHD: Tensor, k_tKD: Tensor, v_tKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        heads, kv_heads = q_tHD.shape[1], k_tKD.shape[1]
        both = self.group.gather_tokens(torch.cat((k_tKD, v_tKD), 1), self.tokens)
        keys, values = both.split(kv_heads, 1)
        out = []
        for part in self._parts:
            q, k, v = q_tHD[part.queries], keys[part.keys], values[part.keys]
            mask = self._mask(part, window, q.device)
            k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
            mixed = F.scaled_dot_product_attention(
                q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask, scale=scale
            )
            out.append(mixed[0].transpose(0, 1))
        return torch.cat(out) if out else q_tHD + 0 * both.sum()  # no token here, but a part in every sum

    def _mask(self, part: _TreePart, window: int | None, device: torch.device) -> Any:
        queries, keys = (s.stop - s.start for s in (part.queries, part.keys))
        if part.distance_qk is None and window is None:
            from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler, which takes seconds

            return causal_lower_right(queries, keys)
        back = part.distance_qk
        if back is None:
            back = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
        seen: Tensor = back >= 0
        return seen if window is None else seen & (back < window)


def _is_unbranched(parents: Sequence[int], first: int) -> bool:
    """Whether each segment follows the one before it."""
    return all(parent == first + i - 1 for i, parent in enumerate(parents) if i)
