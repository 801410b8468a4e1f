"""Control, Scaling and Performance of a method that thinks under a budget (Muennighoff et al. 2025, s1)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import Numbers, to_floats


def budget_control(tokens_used: Numbers, max_tokens: ArrayLike, min_tokens: ArrayLike = 0) -> float:
    """The share of runs whose thinking stayed within [least, most]: bounds for all runs, or one for each."""
    used_N = np.asarray(tokens_used, dtype=float)
    if used_N.size == 0 or np.any(np.isnan(used_N)):
        raise UsageError("control needs the tokens used by every run, of at least one")
    try:
        low, high = (np.broadcast_to(np.asarray(x, dtype=float), used_N.shape) for x in (min_tokens, max_tokens))
    except ValueError:
        raise UsageError("give one bound for all runs, or one for each") from None
    if np.any(low > high):
        raise UsageError("a budget's least must not be above its most")
    return float(np.mean((low <= used_N) & (used_N <= high)))


def budget_scaling(budgets: Numbers, accuracies: Numbers) -> float:
    """The mean slope over all pairs of budgets: accuracy gained per token of budget. Useful methods are above 0."""
    points = _points(budgets, accuracies)
    if len(points) < 2:
        raise UsageError("scaling is a slope between budgets; it needs at least two")
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)]
    return sum(slopes) / len(slopes)


def budget_performance(accuracies: Numbers) -> float:
    """The best accuracy at any budget."""
    return max(a for _, a in _points(range(len(accuracies)), accuracies))


def _points(budgets: Numbers, accuracies: Numbers) -> list[tuple[float, float]]:
    if len(budgets) != len(accuracies) or len(budgets) == 0:
        raise UsageError(f"every budget takes one accuracy; got {len(budgets)} and {len(accuracies)}")
    points = sorted(zip(to_floats(budgets).tolist(), to_floats(accuracies).tolist(), strict=True))
    if len({b for b, _ in points}) < len(points):
        raise UsageError("a budget stands twice; give each budget one accuracy")
    if not np.all(np.isfinite(points)):
        raise UsageError("a budget or an accuracy is no number; leave out what was not measured")
    return points
