"""Features of the log-probabilities that an answer was sampled with: numbers that a reward model's head may read beside
hidden states. Of all tokens that the policy wrote up to a place: the sum, the mean and the lowest.

Shapes: T tokens on a path.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ponder.types import Trace

LOGPROB_FEATURES = ("sum", "mean", "lowest")
NO_LOGPROBS = "there are no log-probabilities that it was sampled with, which this model reads"


def logprob_features(trace: Trace, step: int) -> NDArray[np.float64]:
    """[T, 3]: at each token on the path to a step the features of all that was sampled up to and with it. NaN where
    nothing was sampled yet, and from the first sampled token on whose log-probability is not known."""
    steps = [trace.steps[i] for i in trace.path(step)]
    nothing = np.zeros(0, np.float32)
    logprobs = np.concatenate(
        [nothing, *(np.zeros(len(s.token_ids)) if s.logprobs is None else s.logprobs for s in steps)]
    )
    sampled = np.concatenate([nothing, *(np.full(len(s.token_ids), s.sampled) for s in steps)])
    total, count = logprobs.cumsum(dtype=np.float64), sampled.cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
    out = np.stack([total, mean, np.minimum.accumulate(logprobs)], 1)
    out[count == 0] = np.nan
    return out


def features_at(trace: Trace, step: int, places: Sequence[int]) -> NDArray[np.float64] | None:
    """The features at these tokens of the path; None if some are not known."""
    found = logprob_features(trace, step)[list(places)]
    return None if np.isnan(found).any() else found
