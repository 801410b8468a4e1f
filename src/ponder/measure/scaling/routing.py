"""Which queries deserve the strong (or slow) system: quality against cost as a signal sends more of them there.

Between sending nobody and everybody, the area under the curve is the mean quality over all spendings. Sending at random
is a straight line; the oracle knows what each query gains. Shapes: P problems, J points of a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import FloatArray, to_floats


@dataclass(frozen=True, slots=True)
class RoutingCurve:
    """Mean cost and quality per query, from all weak to all strong."""

    cost: FloatArray
    quality: FloatArray
    area: float
    random_area: float  # area of a coin that decides
    oracle_area: float  # area where the gains are known

    @property
    def recovered_share(self) -> float:
        """The share of what knowing gains over a coin: 1 as good as the oracle, 0 a coin, NaN where both are one."""
        return (
            (self.area - self.random_area) / (self.oracle_area - self.random_area)
            if self.oracle_area > self.random_area
            else float("nan")
        )

    def quality_at(self, cost: float) -> float:
        """The quality for a mean cost, mixing neighbours."""
        if not self.cost[0] <= cost <= self.cost[-1]:
            raise UsageError(f"a mean cost of {cost:g} is outside the curve, {self.cost[0]:g} to {self.cost[-1]:g}")
        return float(np.interp(cost, self.cost, self.quality))


def routing_curve(
    signal: Sequence[float | None],
    weak: Sequence[float],
    strong: Sequence[float],
    weak_cost: ArrayLike,
    strong_cost: ArrayLike,
    cascade: bool = False,
) -> RoutingCurve:
    """Queries of the highest signal go to the strong system first; equal signals in random order, on average.

    Costs are one for all or one for each. In a cascade the weak one is asked first, and paid for, every time.
    """
    signal_P, weak_P, strong_P = to_floats(signal), to_floats(weak), to_floats(strong)
    if not signal_P.size == weak_P.size == strong_P.size or signal_P.size == 0:
        raise UsageError("every query takes a signal, a weak outcome and a strong outcome, of at least one query")
    for name, values in (("signal", signal_P), ("weak outcome", weak_P), ("strong outcome", strong_P)):
        if lost := int((~np.isfinite(values)).sum()):
            raise UsageError(f"{lost} of {values.size} queries have no {name}; leave those out and say how many")
    try:
        low_P, high_P = (np.broadcast_to(np.asarray(x, dtype=float), signal_P.shape) for x in (weak_cost, strong_cost))
    except ValueError:
        raise UsageError("give one cost for all queries, or one number for each") from None
    more_P = high_P if cascade else high_P - low_P
    if not (np.isfinite(more_P).all() and np.all(more_P > 0) and np.all(low_P >= 0)):
        raise UsageError("the strong system must cost more than the weak one on every query; swap them otherwise")
    start, gain_P = (float(low_P.mean()), float(weak_P.mean())), strong_P - weak_P
    cost, quality = _curve(signal_P, more_P, gain_P, start)
    best = _curve(gain_P / more_P, more_P, gain_P, start)
    middle = (quality[0] + quality[-1]) / 2
    return RoutingCurve(cost, quality, _area(cost, quality), float(middle), _area(*best))


def _curve(
    order_P: FloatArray, more_P: FloatArray, gain_P: FloatArray, start: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Points where a whole group of equal signals was sent; within one, the mean over orders is the line between."""
    _, group_P = np.unique(-order_P, return_inverse=True)
    size = order_P.size
    cost = np.concatenate([[0.0], np.bincount(group_P, weights=more_P).cumsum()]) / size + start[0]
    quality = np.concatenate([[0.0], np.bincount(group_P, weights=gain_P).cumsum()]) / size + start[1]
    return cost, quality


def _area(cost: FloatArray, quality: FloatArray) -> float:
    return float(np.sum(np.diff(cost) * (quality[1:] + quality[:-1]) / 2) / (cost[-1] - cost[0]))
