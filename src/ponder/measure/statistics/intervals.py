"""Confidence intervals for one accuracy, for one mean, and for two systems on the same problems.

Wilson (1927) for a share of right answers, Newcombe (1998, method 10) for the difference of two shares that come
from the same problems, and the percentile bootstrap over problems where values are not just right or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from ponder.errors import UsageError
from ponder.measure.statistics.arrays import to_floats
from ponder.measure.statistics.bootstrap import bootstrap_tail, percentile_interval, resampled_indices

CONFIDENCE = 0.95
FEW_PROBLEMS = 500  # with fewer problems than this an accuracy moves by points from luck alone, so the output says so


def wilson(right: int, total: int, level: float = CONFIDENCE) -> tuple[float, float]:
    """The Wilson score interval for a share: holds its level at small counts and stays inside [0, 1]."""
    if not 0 <= right <= total or total == 0:
        raise UsageError(f"{right} right of {total} has no accuracy; it takes 0 <= right <= total and total >= 1")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = right / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    # At the ends the interval touches 0 or 1 exactly; rounding must not leave the estimate outside it.
    return (0.0 if right == 0 else middle - half, 1.0 if right == total else middle + half)


def format_share(mean: float, low: float, high: float) -> str:
    """77.0 % [71.9, 81.4]: the form of every accuracy that is shown."""
    return f"{100 * mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Right answers among all, with the Wilson interval at 95 %.

    One that nobody could judge is not right, as far as is known, and may have been: the interval goes from the low end
    where all such are wrong to the high end where all are right (bounds as Manski's for what is missing).
    """

    correct: int
    total: int
    undecided: int = 0  # of all, those that no verifier could judge, or that an error ended
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.undecided <= self.total - self.correct:
            raise UsageError(f"{self.correct} right and {self.undecided} undecided are more than all {self.total}")
        object.__setattr__(self, "low", wilson(self.correct, self.total)[0])
        object.__setattr__(self, "high", wilson(self.correct + self.undecided, self.total)[1])

    @classmethod
    def from_outcomes(cls, outcomes: Iterable[bool | float | None]) -> Accuracy:
        """From one outcome per problem: true or 1, false or 0, None or NaN where the verifier could not tell."""
        verdicts = [_to_bool(o) for o in outcomes]
        return cls(verdicts.count(True), len(verdicts), verdicts.count(None))

    @property
    def mean(self) -> float:
        return self.correct / self.total

    def __str__(self) -> str:
        return f"{self.share} ({self.correct} of {self.total}{_caveats(self.total, self.undecided, among=True)})"

    @property
    def share(self) -> str:
        """In percent, with the interval."""
        return format_share(self.mean, self.low, self.high)


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean over problems with its 95 % interval, for values that are not just right or wrong (pass@k, reward)."""

    mean: float
    low: float
    high: float
    total: int
    undecided: int = 0
    undecided_in_total: bool = False  # the undecided ones are in the total, as in an Accuracy; else they are left out

    def __str__(self) -> str:
        caveats = _caveats(self.total, self.undecided, self.undecided_in_total)
        return f"{self.share} (mean of {self.total} problems{caveats})"

    @property
    def share(self) -> str:
        """In percent where the mean is a share, between 0 and 1, with the interval."""
        if 0 <= self.mean <= 1:
            return format_share(self.mean, self.low, self.high)
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """First minus second system on the same problems, with Newcombe's paired interval at 95 %."""

    mean: float
    low: float
    high: float
    total: int
    wins: int  # only the first was right
    losses: int  # only the second was right
    undecided: int = 0

    @property
    def p_value(self) -> float:
        """McNemar's exact test: were the two equally good, how often would wins and losses part this far?"""
        from scipy.special import bdtr

        n, fewer = self.wins + self.losses, min(self.wins, self.losses)
        return min(1.0, 2 * float(bdtr(fewer, n, 0.5)))

    def __str__(self) -> str:
        points = f"{100 * self.mean:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        counts = f"{self.wins} won, {self.losses} lost of {self.total}"
        return f"{points} (paired, Newcombe; {counts}{_caveats(self.total, self.undecided)})"


def paired_difference(
    first: Sequence[bool | float | None], second: Sequence[bool | float | None], level: float = CONFIDENCE
) -> PairedDifference:
    """Accuracy of `first` minus accuracy of `second`, problem i of one being problem i of the other.

    A problem that either left undecided drops out of both. For graded scores use `bootstrap_mean` on differences.
    """
    if len(first) != len(second):
        raise UsageError(f"paired systems need the same problems; one has {len(first)}, the other {len(second)}")
    pairs = [(_to_bool(a), _to_bool(b)) for a, b in zip(first, second, strict=True)]
    decided = [(a, b) for a, b in pairs if a is not None and b is not None]
    both, won = decided.count((True, True)), decided.count((True, False))
    lost, neither = decided.count((False, True)), decided.count((False, False))
    low, high = _newcombe(both, won, lost, neither, level)
    n = len(decided)
    return PairedDifference((won - lost) / n, low, high, n, won, lost, len(pairs) - n)


def bootstrap_mean(
    values: Iterable[float | None], level: float = CONFIDENCE, resamples: int = 10_000, seed: int = 0
) -> MeanInterval:
    """The mean of one value per problem; the interval is the percentile bootstrap over problems."""
    numbers = to_floats(list(values))
    known = numbers[~np.isnan(numbers)]
    if known.size == 0:
        raise UsageError("a mean needs at least one known value; got none")
    if np.isinf(known).any():
        raise UsageError("a value is infinite, so the mean says nothing; leave it out, as None")
    lost = int(numbers.size - known.size)
    if np.all(known == known[0]):
        low, high = constant_sample_interval(float(known[0]), known.size, level)
        return MeanInterval(float(known[0]), low, high, int(known.size), lost)
    rng = np.random.default_rng(seed)
    means = [known[drawn].mean(axis=1) for drawn in resampled_indices(known.size, resamples, rng)]
    low, high = percentile_interval(np.concatenate(means), bootstrap_tail(int(known.size), level))
    return MeanInterval(float(known.mean()), float(low), float(high), int(known.size), lost)


def mean_with_undecided(values: Sequence[float | None], graded: bool = False) -> Accuracy | MeanInterval:
    """One value per problem, with every problem in the denominator: what is not known (None) counts as 0, and in the
    interval's high end as 1. Right or wrong has its own interval; what lies between, or may (`graded`), gets the
    bootstrap's.

    Values outside 0 to 1 have no such ends: then the mean is of those that are known, and says so.
    """
    known = [v for v in values if v is not None and v == v]
    if not known or (not graded and all(v in (0, 1) for v in known)):
        return Accuracy.from_outcomes(values)
    lost = len(values) - len(known)
    if not lost or not all(0 <= v <= 1 for v in known):
        return bootstrap_mean(values)
    least, most = bootstrap_mean([*known, *[0.0] * lost]), bootstrap_mean([*known, *[1.0] * lost])
    return MeanInterval(least.mean, least.low, most.high, len(values), lost, undecided_in_total=True)


def constant_sample_interval(
    value: float, total: int, level: float = CONFIDENCE, least: float = 0.0
) -> tuple[float, float]:
    """An interval for the mean of values in [least, 1] that were all the same, which is not certain either.

    Of the problems there are, a share q differ with a chance of (1 - q)^total to draw none of them; the q at which that
    is rare may all be at either end. NaN where values have no such ends.
    """
    if not least <= value <= 1:
        return math.nan, math.nan
    q = 1 - ((1 - level) / 2) ** (1 / total)
    return value - q * (value - least), value + q * (1 - value)


def _newcombe(both: int, won: int, lost: int, neither: int, level: float) -> tuple[float, float]:
    """Newcombe (1998), method 10: two Wilson intervals, joined under the correlation phi of the outcomes."""
    n = both + won + lost + neither
    if n == 0:
        raise UsageError("no problem was judged for both systems, so there is nothing to compare")
    p1, p2 = (both + won) / n, (both + lost) / n
    (l1, u1), (l2, u2) = wilson(both + won, n, level), wilson(both + lost, n, level)

    margins = (both + won) * (lost + neither) * (both + lost) * (won + neither)
    cross: float = both * neither - won * lost
    if cross > 0:
        cross = max(cross - n / 2, 0)  # continuity correction: weak positive correlation counts as none
    phi = cross / math.sqrt(margins) if margins else 0.0

    down = (p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2
    up = (p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2
    return p1 - p2 - math.sqrt(max(down, 0.0)), p1 - p2 + math.sqrt(max(up, 0.0))


def _to_bool(value: bool | float | None) -> bool | None:
    if value is None or value != value:  # None or NaN
        return None
    if value not in (0, 1):
        raise UsageError(f"an outcome is right (1) or wrong (0), got {value!r}; use bootstrap_mean for graded scores")
    return bool(value)


def _caveats(total: int, undecided: int, among: bool = False) -> str:
    few = f"; fewer than {FEW_PROBLEMS} problems" if total < FEW_PROBLEMS else ""
    how = "not right as far as is known" if among else "left out"
    return (f"; {undecided} undecided, {how}" if undecided else "") + few
