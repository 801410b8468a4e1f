"""Evaluate: how uncertain a policy was, from its next-token distributions: per token, and of a whole answer.

Six measures of a distribution p over V tokens (Besta et al. 2025, appendix):

    entropy      -sum p log p, in nats
    varentropy   sum p (log p)^2 - entropy^2: the variance of the surprise
    gini         1 - sum p^2: the chance that two samples differ
    variance     sum (p - 1/V)^2 / V = (1 - gini - 1/V) / V: the spread of the probabilities
    margin       the likeliest token's probability less the second's
    two_way      twice the second's probability: 1 less the margin and less the probability of all other tokens, so
                 large where the two likeliest are close and the rest is low

A flat distribution has large entropy and gini, small variance and margin. Varentropy is large where a few tokens are
likely and many others are possible, and 0 for a flat one.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ponder.errors import UsageError
from ponder.types import Completion, Floats, Trace

LOW_MEANS_UNCERTAIN = ("variance", "margin")
UNCERTAINTY_MEASURES = ("entropy", "varentropy", "gini", "two_way", *LOW_MEANS_UNCERTAIN)


def token_uncertainty(c: Completion, name: str, vocabulary: int = 0) -> Floats:
    """One measure for each sampled token, from the statistics that the policy returns."""
    if name in ("margin", "two_way"):
        if c.top_logprobs is None or c.top_logprobs[1].shape[-1] < 2:
            raise UsageError(f"{name} needs the two likeliest tokens, and this policy does not return them")
        p = np.exp(c.top_logprobs[1][:, :2].astype(np.float64))
        return (2 * p[:, 1] if name == "two_way" else p[:, 0] - p[:, 1]).astype(np.float32)
    statistic = "gini" if name == "variance" else name
    if statistic not in c.notes:
        raise UsageError(
            f"this policy does not return the {statistic} of its distributions; fork by margin, or use another policy"
        )
    values = c.notes[statistic]
    return ((1 - values - 1 / vocabulary) / vocabulary).astype(np.float32) if name == "variance" else values


@dataclass(frozen=True, slots=True)
class UncertaintyTrigger:
    """Fires at an uncertain token: beyond a fixed `threshold`, or beyond a `quantile` of the tokens so far. Give one.

    `quantile=0.9`: more uncertain than nine tenths of the tokens so far, once there are `min_seen_tokens`.
    """

    threshold: float | None = None
    quantile: float | None = None
    min_seen_tokens: int = 32

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.quantile is None):
            raise UsageError("a trigger has a threshold or a quantile: give one of the two, and none for the other")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise UsageError(f"quantile is {self.quantile}; it must lie between 0 and 1")
        if self.min_seen_tokens < 1:
            raise UsageError(
                f"min_seen_tokens is {self.min_seen_tokens}; a quantile needs at least one token before it"
            )

    def cutoff(self, seen: Sequence[float], small: bool = False) -> float | None:
        """The value beyond which a token fires, given the sorted earlier values; None: none fires yet.

        `small`: small values are uncertain.
        """
        if self.quantile is None:
            return self.threshold
        if len(seen) < self.min_seen_tokens:
            return None
        place = (1 - self.quantile if small else self.quantile) * (len(seen) - 1)
        low = min(int(place), len(seen) - 2) if len(seen) > 1 else 0
        return seen[low] + (place - low) * (seen[min(low + 1, len(seen) - 1)] - seen[low])


def is_beyond_cutoff(value: float, bar: float | None, small: bool = False) -> bool:
    """Is the value on the uncertain side of the cutoff?"""
    return bar is not None and (value < bar if small else value > bar)


def insert_sorted(seen: list[float], values: Floats) -> None:
    """Insert the values into a sorted list."""
    for value in values.tolist():
        if value == value:  # NaN: not known
            bisect.insort(seen, value)


ConfidenceMeasure = Literal["likelihood", "entropy", "gini"]


def mean_logprob(trace: Trace, step: int) -> float | None:
    """Mean log-probability of the sampled tokens on the path to a step; None if the policy returns none."""
    return _mean([lp for i in trace.path(step) if (lp := trace.steps[i].logprobs) is not None])


def sum_logprob(trace: Trace, step: int) -> float | None:
    """Their sum: the log-probability of all that was sampled."""
    mean = mean_logprob(trace, step)
    if mean is None:
        return None
    return mean * sum(len(lp) for i in trace.path(step) if (lp := trace.steps[i].logprobs) is not None)


def answer_confidence(trace: Trace, step: int, how: ConfidenceMeasure = "likelihood") -> float | None:
    """In [0, 1]. `likelihood`: exp of the mean log-probability (the normalised weight of Wang et al. 2023). `entropy`:
    exp(-H) of the mean entropy H in nats. `gini`: 1 - the mean of Gini's measure. The last two need
    `Sampling.token_stats`."""
    if how == "likelihood":
        mean = mean_logprob(trace, step)
        return None if mean is None else math.exp(min(0.0, mean))
    steps = [trace.steps[i] for i in trace.path(step) if trace.steps[i].sampled]
    if any(how not in s.notes for s in steps):
        return None
    mean = _mean([s.notes[how] for s in steps])
    return None if mean is None else math.exp(-mean) if how == "entropy" else 1.0 - mean


def _mean(parts: list[np.ndarray[tuple[int], np.dtype[np.float32]]]) -> float | None:
    numbers = np.concatenate(parts) if parts else np.zeros(0)
    mean = float(numbers.mean(dtype=np.float64)) if numbers.size else math.nan
    return mean if math.isfinite(mean) else None
