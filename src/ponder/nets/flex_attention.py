"""Attention over packed sequences that share prefixes, by FlexAttention. Shapes as in decoder.py; S segments, Q blocks.

For what flash attention does not support: float32, and deep trees. The kernel is compiled from the rule "a token sees
the tokens before it on its own path", and visits only blocks in which at least one token sees another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.nets.torch_compile import compile_once

FLEX_BLOCK_TOKENS = 128  # where the packer has not filled the last block, each layer fills it here


class FlexTreeAttention:
    """Attention over a forest of segments; `parents[s] < s`, or -1 for a root. Trees follow each other."""

    can_compile = False

    def __init__(
        self, lengths: Sequence[int], parents: Sequence[int], positions_T: np.ndarray[Any, Any], device: torch.device
    ) -> None:
        self.positions_T = torch.from_numpy(positions_T).to(device)
        self._padding = -sum(lengths) % FLEX_BLOCK_TOKENS
        if self._padding:  # a tree of its own, which no token sees
            lengths, parents = [*lengths, self._padding], [*parents, -1]
            positions_T = np.append(positions_T, np.arange(self._padding))
        enter, leave = _preorder_ranges(parents)
        self._enter_T, self._leave_T, self._mask_positions_T = (
            torch.from_numpy(n.astype(np.int32)).to(device)
            for n in (np.repeat(enter, lengths), np.repeat(leave, lengths), positions_T)
        )
        self._masks: dict[int | None, Any] = {}

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        if self._padding:
            q_THD, k_TKD, v_TKD = (F.pad(x, (0, 0, 0, 0, 0, self._padding)) for x in (q_THD, k_TKD, v_TKD))
        q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_TKD, v_TKD))
        gqa = q.shape[1] != k.shape[1]
        out = _compiled_flex_attention()(q, k, v, block_mask=self._mask(window), scale=scale, enable_gqa=gqa)
        mixed_THD = out[0].transpose(0, 1)
        return mixed_THD[: len(self.positions_T)] if self._padding else mixed_THD

    def _mask_mod(self, window: int | None) -> Callable[..., Tensor]:
        """Whether query q sees key k: k is on q's path, not after q, and inside the window."""
        enter_T, leave_T, positions_T = self._enter_T, self._leave_T, self._mask_positions_T

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            above = (enter_T[k] <= enter_T[q]) & (enter_T[q] < leave_T[k]) & (k <= q)
            return above if window is None else above & (positions_T[q] - positions_T[k] < window)

        return sees

    def _mask(self, window: int | None) -> Any:
        """Which blocks are invisible, partly visible or fully visible; the same for all layers with this window."""
        if window not in self._masks:
            from torch.nn.attention.flex_attention import BlockMask

            sees, total = self._mask_mod(window), len(self._enter_T)
            keys_T = torch.arange(total, device=self.positions_T.device)
            none = torch.zeros((), dtype=torch.int32, device=keys_T.device)
            some, whole = [], []
            for rows in keys_T.split(16 * FLEX_BLOCK_TOKENS):  # a slab of the [T, T] mask at a time
                seen = sees(none, none, rows[:, None], keys_T[None]).view(
                    -1, FLEX_BLOCK_TOKENS, total // FLEX_BLOCK_TOKENS, FLEX_BLOCK_TOKENS
                )
                some.append(seen.any(3).any(1))
                whole.append(seen.all(3).all(1))
            some_QQ, whole_QQ = torch.cat(some), torch.cat(whole)
            parts = (*_kv_block_lists(some_QQ & ~whole_QQ), *_kv_block_lists(whole_QQ))
            self._masks[window] = BlockMask.from_kv_blocks(*parts, BLOCK_SIZE=FLEX_BLOCK_TOKENS, mask_mod=sees)
        return self._masks[window]


def _preorder_ranges(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """A segment's index in a depth-first walk over the trees, and that of the first segment after its subtree."""
    below = [1] * len(parents)
    for s in reversed(range(len(parents))):
        if parents[s] >= 0:
            below[parents[s]] += below[s]
    enter, free = [0] * len(parents), [0] * len(parents)  # free: the next number inside a segment's part of the walk
    root = 0
    for s, p in enumerate(parents):
        enter[s] = root if p < 0 else free[p]
        free[s] = enter[s] + 1
        if p < 0:
            root += below[s]
        else:
            free[p] += below[s]
    return enter, [e + b for e, b in zip(enter, below, strict=True)]


def _kv_block_lists(blocks_QQ: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, and their indices in order."""
    order = blocks_QQ.int().argsort(dim=-1, descending=True, stable=True)
    return blocks_QQ.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return compile_once(flex_attention)
