"""Train or think: the number of queries at which training a better model is cheaper than more inference compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import Numbers

SpendDecision = Literal["train", "think", "either", "neither"]


@dataclass(frozen=True, slots=True)
class TrainOrThink:
    """Both ways to one quality, in dollars (or FLOPs); None where a way does not reach it at any cost tried."""

    training_cost: float  # once
    trained_query_cost: float | None  # per query, of the trained model
    thinking_query_cost: float | None  # per query, of the present model thinking longer

    def __post_init__(self) -> None:
        for name in ("training_cost", "trained_query_cost", "thinking_query_cost"):
            value = getattr(self, name)
            known = isinstance(value, int | float) and math.isfinite(value) and value >= 0
            if not known and (value is not None or name == "training_cost"):
                raise UsageError(f"{name} is {value}; it must be a number, 0 or more")

    @property
    def break_even_queries(self) -> float:
        """Queries at which both cost the same: below, think; above, train. Infinite where training never pays."""
        if self.trained_query_cost is None:
            return math.inf
        if self.thinking_query_cost is None:
            return 0.0
        saved = self.thinking_query_cost - self.trained_query_cost
        if saved <= 0:
            return 0.0 if self.training_cost == 0 and saved == 0 else math.inf
        return self.training_cost / saved

    def cost(self, queries: float) -> tuple[float | None, float | None]:
        """Of training and of thinking, for so many queries."""
        if not queries >= 0:
            raise UsageError(f"a volume of {queries} queries is none; it must be 0 or more")
        train = None if self.trained_query_cost is None else self.training_cost + queries * self.trained_query_cost
        return train, None if self.thinking_query_cost is None else queries * self.thinking_query_cost

    def cheaper_side(self, queries: float) -> SpendDecision:
        """Where to spend for so many queries."""
        train, think = self.cost(queries)
        if train is None or think is None:
            return "neither" if train is think else "think" if train is None else "train"
        return "either" if train == think else "train" if train < think else "think"


def cost_for_quality(quality: float, costs: Numbers, qualities: Numbers) -> float | None:
    """The least cost at which a curve, straight over log cost, reaches a quality; None where it never does.

    A point is worth the best that any cheaper one brings, since more need not be spent.
    """
    if len(costs) != len(qualities) or len(costs) == 0:
        raise UsageError(f"every cost takes one quality; got {len(costs)} and {len(qualities)}")
    points = sorted(zip(map(float, costs), map(float, qualities), strict=True))
    if math.isnan(quality) or not all(math.isfinite(q) and math.isfinite(c) and c > 0 for c, q in points):
        raise UsageError("costs must be above 0, and qualities known")
    before: tuple[float, float] | None = None
    for c, q in points:
        if q >= quality:
            if before is None:
                return c
            part = (quality - before[1]) / (q - before[1])
            return float(math.exp(math.log(before[0]) + part * (math.log(c) - math.log(before[0]))))
        if before is None or q > before[1]:
            before = (c, q)
    return None


def train_or_think(
    quality: float,
    training: float,
    trained: tuple[Numbers, Numbers],
    thinking: tuple[Numbers, Numbers],
) -> TrainOrThink:
    """From curves (cost per query, quality) of the trained and of the present model: both ways to one quality."""
    return TrainOrThink(training, cost_for_quality(quality, *trained), cost_for_quality(quality, *thinking))
