"""Compare systems on the same problems: accuracy, cost, and paired differences with intervals and p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ponder.errors import UsageError
from ponder.measure.readers.attempts import Attempts, ProblemAttempts, align_problems
from ponder.measure.statistics.clustered_means import ClusteredMean, clustered_mean
from ponder.measure.statistics.decision_rules import DecisionRule, accuracy_of_values, apply_rule, default_rule
from ponder.measure.statistics.elo_ratings import EloRating, elo_ratings
from ponder.measure.statistics.intervals import (
    FEW_PROBLEMS,
    Accuracy,
    MeanInterval,
    constant_sample_interval,
    paired_difference,
)
from ponder.measure.statistics.paired_tests import paired_means, sign_flip_test
from ponder.measure.statistics.power_analysis import problems_for_accuracies, problems_for_means
from ponder.measure.statistics.sample_consistency import SampleConsistency, sample_consistency
from ponder.reason.price import Price
from ponder.types import Cost

ProblemValues = Sequence[float | None]


@dataclass(frozen=True)
class SystemResult:
    """One system: `values` has what its answer to each problem is worth, None where no verdict says."""

    name: str
    accuracy: Accuracy | MeanInterval
    values: tuple[float | None, ...]
    samples: tuple[int, int]  # per problem, the fewest and the most
    undecided: int  # attempts without a verdict
    tokens_per_problem: float | None  # written per problem; None: the log does not tell
    flops_per_problem: float | None
    seconds_per_problem: float | None
    dollars_per_problem: float | None
    clustered: ClusteredMean | None = None  # of one sample: where its standard error comes from; None: one sample each
    consistency: SampleConsistency | None = None  # where k was asked for


@dataclass(frozen=True)
class PairwiseResult:
    """First less second on the same problems, with a 95 % interval."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    total: int  # problems that both have a verdict on
    wins: int  # problems on which the first is better
    losses: int
    test: str
    p_value: float
    adjusted_p_value: float  # the p-value, as one of several (Holm 1979)
    problems_needed: int | None = None  # to see this difference with a chance of 80 %; None where there is none


@dataclass(frozen=True)
class Comparison:
    rule: DecisionRule
    problems: int
    systems: tuple[SystemResult, ...]
    pairs: tuple[PairwiseResult, ...]
    notes: tuple[str, ...]
    ratings: tuple[EloRating, ...] = ()  # best first, where they were asked for


def compare_systems(
    systems: Sequence[Attempts],
    method: DecisionRule | None = None,
    common_only: bool = False,
    scorer: str | None = None,
    all_pairs: bool = False,
    prices: Mapping[str, Price] | None = None,
    k: int | None = None,
    tau: float = 0.5,
    elo: bool = False,
) -> Comparison:
    """Every system against the first, or with `all_pairs` every two. `method`: how attempts become one answer.

    `prices`, by a system's name, give the dollars in place of what its log tells. With `k`, also pass@k and the like;
    with `elo`, ratings in which every problem is a game of every two systems.
    """
    if prices and not any(s.name in prices for s in systems):
        raise UsageError(f"the price table names {', '.join(prices)}, none of {', '.join(s.name for s in systems)}")
    aligned, notes = align_problems(systems, common_only)
    rules = {default_rule(s) for s in aligned}
    chosen: DecisionRule = method or (rules.pop() if len(rules) == 1 else "mean")
    lines = tuple(_system_result(s, apply_rule(s, chosen, scorer), (prices or {}).get(s.name)) for s in aligned)
    if k is not None:
        lines = tuple(
            replace(x, consistency=sample_consistency(s, k, tau)) for x, s in zip(lines, aligned, strict=True)
        )
    among = [(i, j) for i in range(len(lines)) for j in range(i + 1, len(lines)) if all_pairs or i == 0]
    pairs = holm_correction([compare_pair(*((lines[x].name, lines[x].values) for x in (j, i))) for i, j in among])
    total = len(aligned[0].groups)
    if total < FEW_PROBLEMS:
        notes.append(f"fewer than {FEW_PROBLEMS} problems: accuracies move by points from luck alone")
    ratings = tuple(_elo(lines, notes)) if elo else ()
    return Comparison(chosen, total, lines, tuple(pairs), tuple(notes), ratings)


def _elo(lines: Sequence[SystemResult], notes: list[str]) -> list[EloRating]:
    """Every problem is a game of every two systems: the better answer wins, equal ones draw."""
    if len(lines) < 2:
        raise UsageError("ratings need games between systems: give two runs or more, or leave out --elo")
    games = [
        (first.name, second.name, 0.5 if a == b else float(a > b))
        for first, second in combinations(lines, 2)
        for a, b in zip(first.values, second.values, strict=True)
        if a is not None and b is not None
    ]
    try:
        return elo_ratings(games)
    except UsageError:  # somebody only lost, and no finite rating is likeliest
        notes.append("Elo: one drawn game of each system with an average one is added, since some only won or lost")
        return elo_ratings(games, prior=1.0)


def _clustered(system: Attempts) -> ClusteredMean | None:
    """Of one sample at random, where problems have several."""
    groups = [g.correct for g in system.groups if g.verdicts]
    return clustered_mean(groups) if len(groups) > 1 and min(map(len, groups)) > 1 else None


def _system_result(system: Attempts, values: Sequence[float | None], price: Price | None) -> SystemResult:
    costs = [_problem_cost(g) for g in system.groups]
    known = [c for c in costs if c is not None]
    spent = sum(known, Cost()) if len(known) == len(costs) else None
    if spent is not None and price is not None:
        spent = replace(spent, dollars=price.dollars(spent))

    def each(name: str) -> float | None:
        """Per problem; what nobody counted stands as 0 in a cost."""
        total = 0.0 if spent is None else float(getattr(spent, name))
        return total / len(costs) if total else None

    return SystemResult(
        system.name, accuracy_of_values(values), tuple(values), system.samples, system.undecided,
        each("generated_tokens"), each("flops"), each("seconds"), each("dollars"), _clustered(system),
    )  # fmt: skip


def _problem_cost(group: ProblemAttempts) -> Cost | None:
    if group.cost is not None:
        return group.cost
    if group.tokens is None or any(t is None for t in group.tokens):
        return None
    return Cost(generated_tokens=sum(t for t in group.tokens if t is not None))


def compare_pair(first: tuple[str, ProblemValues], second: tuple[str, ProblemValues]) -> PairwiseResult:
    """Two systems, each a name and what its answers are worth, problem by problem."""
    (one, a_P), (other, b_P) = first, second
    both = [(a, b) for a, b in zip(a_P, b_P, strict=True) if a is not None and b is not None]
    if not both:
        raise UsageError(f"{one} and {other} have no problem on which both have a verdict")
    won, lost = sum(a > b for a, b in both), sum(a < b for a, b in both)
    if all(x in (0, 1) for pair in both for x in pair):
        d = paired_difference(a_P, b_P)
        return PairwiseResult(
            one, other, d.mean, d.low, d.high, d.total, won, lost, "McNemar, exact", d.p_value, d.p_value,
            _problems_needed(both),
        )  # fmt: skip
    if len({a - b for a, b in both}) == 1:  # also where there is one problem only
        gap = both[0][0] - both[0][1]
        (low, high), p = constant_sample_interval(gap, len(both), least=-1.0), sign_flip_test([a - b for a, b in both])
    else:
        m = paired_means([[a] for a, _ in both], [[b] for _, b in both])
        gap, low, high, p = m.mean, m.low, m.high, m.p_value
    return PairwiseResult(
        one, other, gap, low, high, len(both), won, lost, "Student, sign flips", p, p, _problems_needed(both)
    )


def _problems_needed(both: Sequence[tuple[float, float]]) -> int | None:
    """Problems like these on which the difference, were it the true one, would show with a chance of 80 %."""
    differences = np.array([a - b for a, b in both])
    mean = float(differences.mean())
    if mean == 0 or len(both) < 2:
        return None
    right = float(np.mean([b for _, b in both]))
    if all(x in (0, 1) for pair in both for x in pair) and 0 < right < 1:
        return problems_for_accuracies(mean, right, float(np.mean(differences != 0)))
    spread = float(differences.std(ddof=1))
    return problems_for_means(mean, spread) if spread else None


def holm_correction(pairs: Sequence[PairwiseResult]) -> list[PairwiseResult]:
    """p-values of several tests, made larger so that the chance of any false alarm stays 5 %."""
    order = sorted(range(len(pairs)), key=lambda i: pairs[i].p_value)
    out, top = list(pairs), 0.0
    for place, i in enumerate(order):
        top = max(top, min(1.0, pairs[i].p_value * (len(pairs) - place)))
        out[i] = replace(pairs[i], adjusted_p_value=top)
    return out
