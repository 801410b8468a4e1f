"""What a vote is worth. The votes themselves are operators of thinking, and live there."""

from __future__ import annotations

from ponder.errors import UsageError
from ponder.reason.operators.vote import best_answer, majority_answer, weighted_answer

__all__ = ["best_answer", "majority_accuracy", "majority_answer", "weighted_answer"]


def majority_accuracy(p: float, n: int) -> float:
    """How often more than half of n independent samples are right, each with chance p; half of exactly half."""
    if not 0 <= p <= 1 or n < 1 or n != int(n):
        raise UsageError(f"a majority of {n} samples with chance {p} is undefined; it takes n >= 1 and p in [0, 1]")
    from scipy.stats import binom  # scipy.stats takes half a second to import

    return float(binom.sf(n // 2, n, p) + (binom.pmf(n // 2, n, p) / 2 if n % 2 == 0 else 0.0))
