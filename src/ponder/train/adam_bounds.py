"""Upper bounds on weights and moments after an AdamW step, from a few scalars. Far from overflow, no tensor is read.

Per element, for a gradient of norm g: |m'| <= b1 m + (1 - b1) g, v' <= b2 v + (1 - b2) g^2, and the weight moves by at
most lr |m'| / ((1 - b1) eps). The bound is very loose, and still far below 1e37 for any setting that learns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ponder.nets.nonfinite_tensors import largest_magnitudes
from ponder.train.adam_states import AdamHyperparameters, AdamState

MAX_SAFE_FLOAT32 = 1e37  # of float32, with a margin for intermediate results of the kernel


@dataclass(frozen=True, slots=True)
class AdamBounds:
    """Bounds on the absolute values of weights, first moments and second moments."""

    weight: float
    first: float
    second: float

    @classmethod
    def measure(cls, weights: Iterable[Tensor], states: Iterable[AdamState]) -> AdamBounds:
        """The current maxima: one pass over memory."""
        listed = list(states)
        first, second = ([s[k] for s in listed for k in s if k in names] for names in _MOMENT_KEYS)
        return cls(_max_abs(weights), _max_abs(first), _max_abs(second))

    def after_step(self, rule: AdamHyperparameters, norm: float, half_precision: bool) -> AdamBounds:
        """Bounds after a step. `half_precision`: the weights overflow early, so use the tighter bound that holds for
        moments which Adam computed itself."""
        b1, b2 = rule.betas
        first = b1 * self.first + (1 - b1) * norm
        second = b2 * self.second + (1 - b2) * norm * norm
        moved = first / ((1 - b1) * rule.eps)
        if half_precision and b1 * b1 < b2:  # Cauchy-Schwarz on the two sums over the same gradients
            moved = min(moved, 1 / math.sqrt((1 - b2) * (1 - b1 * b1 / b2)))
        return AdamBounds(self.weight * (1 + rule.lr * rule.weight_decay) + rule.lr * moved, first, second)

    def within(self, limit: float) -> bool:
        """False also if a bound is NaN."""
        return self.weight < limit and self.first < MAX_SAFE_FLOAT32 and self.second < MAX_SAFE_FLOAT32


_MOMENT_KEYS = (("exp_avg", "exp_avg_max"), ("exp_avg_sq", "exp_avg_sq_max"))


def max_master_weight(params: Mapping[str, Tensor]) -> float:
    """The largest master weight that fits into its parameter's dtype."""
    dtypes = {p.dtype for p in params.values()}
    return min([MAX_SAFE_FLOAT32, *(torch.finfo(dtype).max for dtype in dtypes)])


def _max_abs(tensors: Iterable[Tensor]) -> float:
    some = [t.detach() for t in tensors if t.is_floating_point() and t.numel()]
    if not some:
        return 0.0
    largest = [float(n) for n in torch.stack([n.cpu() for n in largest_magnitudes(some)])]
    return math.nan if any(math.isnan(n) for n in largest) else max(largest)
