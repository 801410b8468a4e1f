"""How sure a policy was of what it wrote, from the distributions it drew from."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ponder.types import Trace

ConfidenceMeasure = Literal["likelihood", "entropy", "gini"]


def mean_logprob(trace: Trace, step: int) -> float | None:
    """Of the tokens that the policy drew on the way to a step; None where it does not tell."""
    return _mean([lp for i in trace.path(step) if (lp := trace.steps[i].logprobs) is not None])


def answer_confidence(trace: Trace, step: int, how: ConfidenceMeasure = "likelihood") -> float | None:
    """In [0, 1]. `likelihood`: exp of the mean log-probability (the normalised weight of Wang et al. 2023). `entropy`:
    exp(-H) of the mean entropy H in nats. `gini`: 1 - the mean of Gini's measure. The last two take what
    `Sampling.measures` asks for."""
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
