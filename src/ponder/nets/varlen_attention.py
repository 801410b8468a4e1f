"""Attention over packed sequences that share prefixes, by flash attention. Shapes as in decoder.py; S runs, G gathered.

A run is a segment, or several in a row that do not branch. Its queries are its own tokens, its keys those of its whole
path: the keys and values of a shared prompt are copied to each completion (they are a small part of what is computed),
and the kernel's causal mask, aligned to the last token, does the rest. Nothing is padded, and there is no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ponder.nets.host_arrays import to_device
from ponder.nets.power_of_two import next_power_of_two

MAX_KEYS_PER_TOKEN = 8.0  # gathered keys per packed token; a deep tree of short steps has more, and uses FlexAttention


class VarlenTreeAttention:
    """Attention over a forest of segments; `parents[s] < s`, or -1 for a root. Trees follow each other."""

    can_compile = True  # it can be part of a compiled block

    @staticmethod
    def supports(runs: UnbranchedRuns, dtype: torch.dtype) -> bool:
        fits = runs.gathered_keys <= MAX_KEYS_PER_TOKEN * len(runs.positions_T)
        return fits and dtype != torch.float32 and torch.backends.cuda.is_flash_attention_available()

    def __init__(self, runs: UnbranchedRuns, device: torch.device) -> None:
        def put(values: Any, kind: type = np.int32) -> Tensor:
            return to_device(np.asarray(values).astype(kind), device)

        self.positions_T = put(runs.positions_T, np.int64)
        self.ends_q = put(np.append(0, np.cumsum(runs.sizes)))
        self.ends_k = put(np.append(0, np.cumsum(runs.path_lengths)))
        self.most_q, self.most_k = (next_power_of_two(max(n)) for n in (runs.sizes, runs.path_lengths))
        self.index_G = put(runs.index_G(), np.int64) if runs.gathered_keys > len(runs.positions_T) else None

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        if self.index_G is not None:
            k_TKD, v_TKD = gather_keys(k_TKD, self.index_G), gather_keys(v_TKD, self.index_G)
        back = -1 if window is None else window - 1  # tokens to look back
        # torch's operator itself: its public wrapper, varlen_attn, costs the host half a millisecond per call
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q_THD, k_TKD.contiguous(), v_TKD.contiguous(), self.ends_q, self.ends_k, self.most_q, self.most_k,
            0.0, True, False, scale=scale, window_size_left=back, window_size_right=0,
        )[0]  # fmt: skip
        return out


class UnbranchedRuns:
    """The unbranched runs of a forest, on the host."""

    def __init__(self, lengths: Sequence[int], parents: Sequence[int]) -> None:
        children = np.bincount([p for p in parents if p >= 0], minlength=len(lengths))
        self.sizes: list[int] = []  # tokens of each run
        self.path_lengths: list[int] = []  # and of the path that ends in it
        self.parent: list[int] = []  # index of the parent run, -1: none
        run_of: list[int] = []  # of each segment
        first = [0]  # token of each run
        for s, (length, p) in enumerate(zip(lengths, parents, strict=True)):
            if not -1 <= p < s or length < 1:
                raise ValueError(f"segment {s}: parent {p}, length {length}")
            if p >= 0 and p == s - 1 and children[p] == 1:
                self.sizes[-1] += length
                self.path_lengths[-1] += length
                first[-1] += length
            else:
                self.parent.append(run_of[p] if p >= 0 else -1)
                self.path_lengths.append(length + (self.path_lengths[self.parent[-1]] if p >= 0 else 0))
                self.sizes.append(length)
                first.append(first[-1] + length)
            run_of.append(len(self.sizes) - 1)
        self.first = first[:-1]
        before = np.asarray(self.path_lengths) - np.asarray(self.sizes)
        self.positions_T = _ranges(before, self.sizes)

    @property
    def gathered_keys(self) -> int:
        return sum(self.path_lengths)

    def index_G(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The tokens of each run's path, path after path."""
        paths: list[list[int]] = []  # runs on the path of each run
        for run, above in enumerate(self.parent):
            paths.append([*paths[above], run] if above >= 0 else [run])
        runs = [run for path in paths for run in path]
        return _ranges(np.asarray(self.first)[runs], np.asarray(self.sizes)[runs])


def _ranges(firsts: Any, sizes: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """So many numbers from each of the first ones on, one range after the other."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1]) + np.repeat(firsts - (ends - sizes), sizes)


class _GatherKeys(torch.autograd.Function):
    """x[index], with gradients of shared tokens summed in float32 or more."""

    @staticmethod
    def forward(ctx: Any, x_TKD: Tensor, index_G: Tensor) -> Tensor:
        ctx.save_for_backward(index_G)
        ctx.total = len(x_TKD)
        return x_TKD.index_select(0, index_G)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index_G,) = ctx.saved_tensors
        wide = torch.promote_types(grads[0].dtype, torch.float32)
        total = torch.zeros(ctx.total, *grads[0].shape[1:], dtype=wide, device=grads[0].device)
        return total.index_add_(0, index_G, grads[0].to(wide)).to(grads[0].dtype), None


def gather_keys(x_TKD: Tensor, index_G: Tensor) -> Tensor:
    """The rows of an index that may name one several times."""
    out: Tensor = _GatherKeys.apply(x_TKD, index_G)  # type: ignore[no-untyped-call]
    return out
