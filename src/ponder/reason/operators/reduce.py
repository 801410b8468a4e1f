"""The scores of the steps on a path as one: how a process reward model rates a whole solution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ponder.types import Trace

Reduction = Literal["min", "product", "last", "mean"]
REDUCTIONS: tuple[Reduction, ...] = ("min", "product", "last", "mean")


def reduced(values: Sequence[float | None], how: Reduction) -> float | None:
    """One number of a path's scores; None where one that counts is missing."""
    if not values or values[-1] is None or how == "last":
        return values[-1] if values else None
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    return min(known) if how == "min" else math.prod(known) if how == "product" else sum(known) / len(known)


def along(trace: Trace, step: int, scorer: str, how: Reduction) -> float | None:
    """What a scorer gave the steps that the policy wrote on the way to this one, as one number."""
    if how == "last":
        return trace.score(step, scorer)
    return reduced([trace.score(i, scorer) for i in trace.path(step) if trace.steps[i].sampled], how)
