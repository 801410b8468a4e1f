"""Which systems are worth their cost: the frontier of quality against cost, and how sure each place on it is.

Shapes: S systems, P problems, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray
from ponder.measure.statistics.bootstrap import bootstrap_tail, percentile_interval, resample_shapes
from ponder.measure.statistics.intervals import CONFIDENCE, constant_sample_interval, wilson


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A system's mean cost and quality with 95 % intervals, whether it lies on the frontier, and how sure that is."""

    name: str
    cost: float
    quality: float
    cost_interval: tuple[float, float]
    quality_interval: tuple[float, float]
    on_frontier: bool
    frontier_probability: float  # share of resampled problem sets in which it is on the frontier


def pareto_frontier(cost: ArrayLike, quality: ArrayLike) -> NDArray[np.bool_]:
    """True where no other is as good for less, or better for as much. Equals are both on it."""
    cost_S, quality_S = np.asarray(cost, dtype=float), np.asarray(quality, dtype=float)
    if cost_S.ndim != 1 or cost_S.shape != quality_S.shape or cost_S.size == 0:
        raise UsageError("a frontier needs one cost and one quality per system, of at least one system")
    if not (np.isfinite(cost_S).all() and np.isfinite(quality_S).all()):
        raise UsageError("a system's cost or quality is unknown; leave it out, since unknown is not free")
    order = np.lexsort((-quality_S, cost_S))
    best_before, on = -np.inf, np.zeros(cost_S.size, dtype=bool)
    last: tuple[float, float] | None = None
    for i in order:
        point = (cost_S[i], quality_S[i])
        on[i] = quality_S[i] > best_before or point == last
        if on[i]:
            best_before, last = quality_S[i], point
    return on


def pareto_frontier_with_intervals(
    names: Sequence[str],
    costs: Sequence[Sequence[float]],
    qualities: Sequence[Sequence[float]],
    resamples: int = 2000,
    seed: int = 0,
) -> list[FrontierPoint]:
    """From the cost and quality of each system on each problem, the problems being the same and in the same order."""
    try:
        cost_SP, quality_SP = (np.asarray(x, dtype=float) for x in (costs, qualities))
    except ValueError:
        raise UsageError("every system needs a cost and a quality on each of the same problems, in one order") from None
    if cost_SP.ndim != 2 or cost_SP.shape != quality_SP.shape or len(names) != len(cost_SP) or not cost_SP.size:
        raise UsageError("every system needs a name, and a cost and a quality on each of the same problems")
    on_S = pareto_frontier(cost_SP.mean(axis=1), quality_SP.mean(axis=1))
    size = cost_SP.shape[1]
    rng = np.random.default_rng(seed)
    both_QP = np.concatenate([cost_SP, quality_SP])
    means = [
        rng.multinomial(size, np.full(size, 1 / size), size=rows) @ both_QP.T / size
        for rows, _ in resample_shapes(resamples, size)
    ]
    cost_RS, quality_RS = np.split(np.concatenate(means), 2, axis=1)
    chance_S = np.mean([pareto_frontier(c, q) for c, q in zip(cost_RS, quality_RS, strict=True)], axis=0)
    cost_2S, quality_2S = _interval(cost_RS, size), _interval(quality_RS, size)
    for i in np.flatnonzero(np.ptp(quality_SP, axis=1) == 0):  # no redrawing differs, which is not certain
        same = float(quality_SP[i, 0])
        quality_2S[:, i] = wilson(round(same) * size, size) if same in (0, 1) else constant_sample_interval(same, size)
    return [
        FrontierPoint(
            name,
            float(cost_SP[i].mean()),
            float(quality_SP[i].mean()),
            (float(cost_2S[0, i]), float(cost_2S[1, i])),
            (float(quality_2S[0, i]), float(quality_2S[1, i])),
            bool(on_S[i]),
            float(chance_S[i]),
        )
        for i, name in enumerate(names)
    ]


def _interval(means_RS: FloatArray, size: int) -> FloatArray:
    """NaN of one problem: it says nothing of others."""
    if size < 2:
        return np.full((2, means_RS.shape[1]), np.nan)
    return np.stack(percentile_interval(means_RS, bootstrap_tail(size, CONFIDENCE)))
