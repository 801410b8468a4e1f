"""Who deserves what: pure functions from a trace's scores to per-token advantages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.types import Trace


def group_relative(rewards: Sequence[float], scale: bool = True, bessel: bool = False) -> NDArray[np.float64]:
    """(r - mean) / std over one group (GRPO, Shao et al. 2024); population std unless `bessel`.

    Equal rewards give exactly 0: compared, not left to an epsilon. A group of one has no baseline.
    """
    if len(rewards) < 2:
        raise UsageError("a group of one has no baseline: sample at least 2 completions per problem")
    r = np.asarray(rewards, dtype=np.float64)
    if np.all(r == r[0]):
        return np.zeros_like(r)
    centred = r - r.mean()
    return centred / r.std(ddof=int(bessel)) if scale else centred


def grpo(trace: Trace, scorer: str, bessel: bool = False) -> None:
    """Write GRPO's advantages on a group: every token of a completion gets the completion's.

    A completion whose score is undecided leaves the group: it earns no credit and shifts no baseline.
    """
    judged = [i for i in trace.answers() if trace.score(i, scorer) is not None]
    if len(judged) < 2:
        if len(trace.answers()) < 2:
            group_relative([0.0] * len(trace.answers()))  # raises, saying why
        return
    rewards = [trace.score(i, scorer) or 0.0 for i in judged]
    for i, advantage in zip(judged, group_relative(rewards, bessel=bessel), strict=True):
        step = trace.steps[i]
        step.advantages = np.full(len(step.token_ids), advantage, dtype=np.float32)


def imitate(trace: Trace) -> None:
    """Supervised fine-tuning: every token of every answer counts the same."""
    for i in trace.answers():
        step = trace.steps[i]
        step.advantages = np.ones(len(step.token_ids), dtype=np.float32)
