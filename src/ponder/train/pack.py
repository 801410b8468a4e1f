"""Traces to tensors: a forest of segments in which every prompt lies once. Shapes: T tokens, N trained tokens.

Only what earns a gradient is packed: a step with no credit (or, without a KL term, credit 0 throughout) is left
out, and so is a prompt nobody needs. It still counts in the denominators, which `plan` fixes over all traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ponder.types import Trace

Weigh = Callable[[Sequence[int]], list[NDArray[np.float64]]]


@dataclass(slots=True)
class Tree:
    """One trace, ready to pack: its segments, and per trained token what the loss needs."""

    segments: list[NDArray[np.int32]]
    parents: list[int]
    source_N: NDArray[np.int64]  # index in the tree of the token whose hidden state predicts
    target_N: NDArray[np.int64]
    advantage_N: NDArray[np.float32]
    sampled_N: NDArray[np.float32]  # log-probability when it was sampled; NaN where nobody sampled it
    weight_N: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        return sum(len(s) for s in self.segments)


@dataclass(slots=True)
class Batch:
    """Several trees end to end."""

    ids_T: Tensor
    lengths: list[int]
    parents: list[int]
    source_N: Tensor
    target_N: Tensor
    advantage_N: Tensor
    sampled_N: Tensor
    weight_N: Tensor


def plan(traces: Sequence[Trace], weigh: Weigh, keep_zero: bool) -> list[Tree]:
    """Trees of everything that earns a gradient, weighed over all credited steps of the optimiser step."""
    credited = [(t, i) for t, trace in enumerate(traces) for i, s in enumerate(trace.steps) if s.advantages is not None]
    weights = weigh([len(traces[t].steps[i].token_ids) for t, i in credited]) if credited else []
    by_trace: dict[int, dict[int, NDArray[np.float64]]] = {}
    for (t, i), weight in zip(credited, weights, strict=True):
        if keep_zero or np.any(traces[t].steps[i].advantages):
            by_trace.setdefault(t, {})[i] = weight
    return [_tree(traces[t], steps) for t, steps in by_trace.items()]


def _tree(trace: Trace, weights: dict[int, NDArray[np.float64]]) -> Tree:
    kept = sorted({j for i in weights for j in trace.path(i) if len(trace.steps[j].token_ids)})
    place = {j: s for s, j in enumerate(kept)}
    starts = np.cumsum([0] + [len(trace.steps[j].token_ids) for j in kept])
    parents, sources, targets, advantages, sampled = [], [], [], [], []
    for s, j in enumerate(kept):
        step = trace.steps[j]
        above = [place[p] for p in trace.path(j)[:-1] if p in place]
        parents.append(above[-1] if above else -1)
        if j not in weights:
            continue
        assert above and step.advantages is not None, "a trained step needs a prompt before it"
        here = np.arange(starts[s], starts[s + 1])
        sources.append(np.concatenate(([starts[above[-1] + 1] - 1], here[:-1])))
        targets.append(step.token_ids)
        advantages.append(step.advantages)
        sampled.append(step.logprobs if step.logprobs is not None else np.full(len(here), np.nan, np.float32))
    return Tree(
        [trace.steps[j].token_ids for j in kept],
        parents,
        np.concatenate(sources).astype(np.int64),
        np.concatenate(targets).astype(np.int64),
        np.concatenate(advantages),
        np.concatenate(sampled),
        np.concatenate([weights[j] for j in kept if j in weights]),
    )


def batches(trees: Sequence[Tree], most_tokens: int, device: torch.device) -> Iterator[Batch]:
    """Micro-batches of whole trees, each of at most so many tokens (a larger tree stands alone)."""
    group: list[Tree] = []
    for tree in trees:
        if group and sum(t.tokens for t in group) + tree.tokens > most_tokens:
            yield pack(group, device)
            group = []
        group.append(tree)
    if group:
        yield pack(group, device)


def pack(trees: Sequence[Tree], device: torch.device) -> Batch:
    lengths: list[int] = []
    parents: list[int] = []
    sources = []
    first = 0
    for tree in trees:
        parents += [p + len(lengths) if p >= 0 else -1 for p in tree.parents]
        lengths += [len(s) for s in tree.segments]
        sources.append(tree.source_N + first)
        first += tree.tokens

    def joined(parts: list[NDArray[np.generic]], kind: type) -> Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(kind)).to(device)

    return Batch(
        joined([s for t in trees for s in t.segments], np.int64),
        lengths,
        parents,
        joined(list(sources), np.int64),
        joined([t.target_N for t in trees], np.int64),
        joined([t.advantage_N for t in trees], np.float32),
        joined([t.sampled_N for t in trees], np.float32),
        joined([t.weight_N for t in trees], np.float32),
    )
