"""Attention over packed sequences that share prefixes, on a CPU. Shapes as in decoder.py.

As in varlen_attention.py the queries of an unbranched run are its own tokens, its keys those of its whole path. Runs
with paths of similar length attend together, padded to the longest. Over a whole tree at once, most of what is
computed would be masked: each of 16 completions would be compared with the 15 others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ponder.nets.padded_attention import Bucket, PaddedAttention, group_by_length
from ponder.nets.varlen_attention import UnbranchedRuns

Indices = np.ndarray[Any, np.dtype[np.int64]]


class PaddedRunAttention(PaddedAttention):
    """Attention over the unbranched runs of a forest."""

    @staticmethod
    def pays(runs: UnbranchedRuns) -> bool:
        """Whether it computes less than attention over whole trees."""
        tokens, trees = 0, list[int]()
        for size, parent in zip(runs.sizes, runs.parent, strict=True):
            if parent < 0:
                trees.append(0)
            trees[-1] += size
            tokens += size
        own = sum(size * path for size, path in zip(runs.sizes, runs.path_lengths, strict=True))
        return 2 * own + runs.gathered_keys < sum(n * n for n in trees) + tokens

    def __init__(self, runs: UnbranchedRuns, device: torch.device | None = None) -> None:
        self.positions_T = torch.as_tensor(runs.positions_T, dtype=torch.int64).to(device)
        ends = np.cumsum(runs.path_lengths)
        paths = np.split(runs.index_G(), ends[:-1])
        groups = group_by_length(runs.path_lengths)
        super().__init__([_pad_bucket(runs, paths, group, device) for group in groups])


def _pad_bucket(runs: UnbranchedRuns, paths: list[Indices], group: list[int], device: torch.device | None) -> Bucket:
    longest, longest_path = max(runs.sizes[r] for r in group), max(runs.path_lengths[r] for r in group)
    queries, keys = (np.zeros((len(group), n), dtype=np.int64) for n in (longest, longest_path))
    real = np.zeros((len(group), longest), dtype=bool)
    distance = np.full((len(group), longest, longest_path), -1, dtype=np.int64)
    distance[:, :, 0] = 0  # padding sees the first key: a softmax over nothing is NaN
    for i, r in enumerate(group):
        size, path = runs.sizes[r], runs.path_lengths[r]
        queries[i, :size] = paths[r][path - size :]
        real[i, :size] = True
        keys[i, :path] = paths[r]
        distance[i, :size, :path] = np.arange(path - size, path)[:, None] - np.arange(path)
    return Bucket(*(torch.from_numpy(x).to(device) for x in (queries, real, distance, keys)))
