"""Power analysis: how many problems an evaluation needs to detect a difference."""

from __future__ import annotations

import math
from statistics import NormalDist

from ponder.errors import UsageError
from ponder.measure.statistics.intervals import CONFIDENCE
from ponder.validate import check_number

MIN_DIFFERENCE = 1e-9  # below, the number of problems has no meaning and overflows
DEFAULT_POWER = 0.8  # how often a difference that is there should be seen


def problems_for_accuracies(
    difference: float,
    accuracy: float,
    disagreement_rate: float | None = None,
    power: float = DEFAULT_POWER,
    level: float = CONFIDENCE,
) -> int:
    """Problems on which two systems must be judged, so that a difference in accuracy shows with a chance of `power`.

    Each on its own problems (that many for each), the first having `accuracy` and the second `difference` more; or
    both on the same ones, where `disagreement_rate` is the share of problems that exactly one of them gets right.
    """
    other = accuracy + difference
    if not (0 < accuracy < 1 and 0 <= other <= 1) or abs(difference) < MIN_DIFFERENCE:
        raise UsageError(
            f"accuracies of {accuracy:g} and {other:g} cannot be told apart; the first lies between 0 and 1, the other "
            f"at most there, and they differ by at least {MIN_DIFFERENCE:g}"
        )
    z, z_power = _quantiles(power, level)
    if disagreement_rate is None:
        middle = (accuracy + other) / 2
        spread = accuracy * (1 - accuracy) + other * (1 - other)
        return math.ceil((z * math.sqrt(2 * middle * (1 - middle)) + z_power * math.sqrt(spread)) ** 2 / difference**2)
    most = min(accuracy + other, 2 - accuracy - other)
    if not abs(difference) <= disagreement_rate <= most + 1e-9:
        raise UsageError(
            f"the systems cannot disagree on {disagreement_rate:g} of the problems: at {accuracy:g} and {other:g} it"
            f" lies between {abs(difference):g} and {most:g}"
        )
    # McNemar's test (Miettinen 1968): only problems on which they disagree tell.
    return math.ceil(
        (z * math.sqrt(disagreement_rate) + z_power * math.sqrt(disagreement_rate - difference**2)) ** 2 / difference**2
    )


def problems_for_width(width: float, accuracy: float, level: float = CONFIDENCE) -> int:
    """Problems after which Wilson's interval of an accuracy near this one is no wider than `width`."""
    if not (MIN_DIFFERENCE <= width < 1 and 0 <= accuracy <= 1):
        raise UsageError(
            f"a width of {width:g} at an accuracy of {accuracy:g}: both are shares, the width at least"
            f" {MIN_DIFFERENCE:g}"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)

    def interval_width(n: int) -> float:
        return 2 * z / (1 + z * z / n) * math.sqrt(accuracy * (1 - accuracy) / n + z * z / (4 * n * n))

    low, high = 1, 1
    while interval_width(high) > width:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if interval_width(middle) <= width else (middle + 1, high)
    return high


def problems_for_means(
    difference: float,
    problem_sd: float,
    sample_sd: float = 0.0,
    samples: int = 1,
    power: float = DEFAULT_POWER,
    level: float = CONFIDENCE,
) -> int:
    """The same for means of several samples per problem (Miller 2024).

    `problem_sd` is of the true difference from problem to problem, `sample_sd` of one sample's outcome around its
    problem's mean, taken alike for both systems, and `samples` how many each draws.
    """
    given = {"difference": difference, "problem_sd": problem_sd, "sample_sd": sample_sd, "samples": samples}
    for name, value in given.items():
        if not math.isfinite(check_number(name, value)):
            raise UsageError(f"{name} is {value}; it must be a finite number")
    if difference == 0 or not (problem_sd >= 0 and sample_sd >= 0 and samples >= 1 and problem_sd + sample_sd > 0):
        raise UsageError("it takes a difference other than 0, spreads of at least 0 (not both 0) and at least 1 sample")
    if not abs(difference) >= MIN_DIFFERENCE * max(problem_sd, sample_sd):
        raise UsageError(
            f"the difference {difference:g} is too small beside spreads of {problem_sd:g} and {sample_sd:g}: give at"
            f" least {MIN_DIFFERENCE:g} of them"
        )
    z, z_power = _quantiles(power, level)
    # Squares of these ratios neither underflow nor overflow where those of tiny and huge numbers do.
    problem_ratio, sample_ratio = problem_sd / difference, sample_sd / difference
    return max(1, math.ceil((z + z_power) ** 2 * (problem_ratio**2 + 2 * sample_ratio**2 / samples)))


def minimum_detectable_difference(
    problems: int,
    accuracy: float,
    disagreement_rate: float | None = None,
    power: float = DEFAULT_POWER,
    level: float = CONFIDENCE,
) -> float:
    """The least gain in accuracy that so many problems show with a chance of `power`; NaN where none is."""
    if problems < 1:
        raise UsageError(f"{problems} problems show nothing; it takes at least 1")
    low, high = 1e-9, 1 - accuracy
    problems_for_accuracies(low, accuracy, disagreement_rate, power, level)  # refuses what cannot be
    if disagreement_rate is not None:
        high = min(
            high, disagreement_rate, 2 - 2 * accuracy - disagreement_rate
        )  # beyond, they could not disagree so often
    if high <= low or problems_for_accuracies(high, accuracy, disagreement_rate, power, level) > problems:
        return math.nan
    for _ in range(100):
        middle = (low + high) / 2
        if problems_for_accuracies(middle, accuracy, disagreement_rate, power, level) <= problems:
            high = middle
        else:
            low = middle
    return high


def _quantiles(power: float, level: float) -> tuple[float, float]:
    if not (0 < power < 1 and 0 < level < 1):
        raise UsageError(f"power and level are chances between 0 and 1, got {power} and {level}")
    return NormalDist().inv_cdf((1 + level) / 2), NormalDist().inv_cdf(power)
