"""Compare systems on the same problems: accuracy, cost, and paired differences with intervals and p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ponder.errors import UsageError
from ponder.measure.readers.attempts import Attempts, ProblemAttempts, align_problems
from ponder.measure.statistics.decision_rules import DecisionRule, accuracy_of_values, apply_rule, default_rule
from ponder.measure.statistics.intervals import (
    FEW_PROBLEMS,
    Accuracy,
    MeanInterval,
    constant_sample_interval,
    paired_difference,
)
from ponder.measure.statistics.paired_tests import paired_means, sign_flip_test
from ponder.reason.price import Price
from ponder.types import Cost

ProblemValues = Sequence[float | None]


@dataclass(frozen=True)
class SystemResult:
    """One system: `worths` has what its answer to each problem is worth, None where no verdict says."""

    name: str
    accuracy: Accuracy | MeanInterval
    values: tuple[float | None, ...]
    samples: tuple[int, int]  # per problem, the fewest and the most
    undecided: int  # attempts without a verdict
    tokens_per_problem: float | None  # written per problem; None: the log does not tell
    flops_per_problem: float | None
    seconds_per_problem: float | None
    dollars_per_problem: float | None


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


@dataclass(frozen=True)
class Comparison:
    rule: DecisionRule
    problems: int
    systems: tuple[SystemResult, ...]
    pairs: tuple[PairwiseResult, ...]
    notes: tuple[str, ...]


def compare_systems(
    systems: Sequence[Attempts],
    method: DecisionRule | None = None,
    common_only: bool = False,
    scorer: str | None = None,
    all_pairs: bool = False,
    prices: Mapping[str, Price] | None = None,
) -> Comparison:
    """Every system against the first, or with `every` all pairs. `method`: how attempts become one answer.

    `prices`, by a system's name, give the dollars in place of what its log tells.
    """
    if prices and not any(s.name in prices for s in systems):
        raise UsageError(f"the price table names {', '.join(prices)}, none of {', '.join(s.name for s in systems)}")
    aligned, notes = align_problems(systems, common_only)
    ways = {default_rule(s) for s in aligned}
    chosen: DecisionRule = method or (ways.pop() if len(ways) == 1 else "mean")
    lines = tuple(_system_result(s, apply_rule(s, chosen, scorer), (prices or {}).get(s.name)) for s in aligned)
    among = [(i, j) for i in range(len(lines)) for j in range(i + 1, len(lines)) if all_pairs or i == 0]
    pairs = holm_correction([compare_pair(*((lines[x].name, lines[x].values) for x in (j, i))) for i, j in among])
    total = len(aligned[0].groups)
    if total < FEW_PROBLEMS:
        notes.append(f"fewer than {FEW_PROBLEMS} problems: accuracies move by points from luck alone")
    return Comparison(chosen, total, lines, tuple(pairs), tuple(notes))


def _system_result(system: Attempts, worths: Sequence[float | None], price: Price | None) -> SystemResult:
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
        system.name, accuracy_of_values(worths), tuple(worths), system.samples, system.undecided,
        each("generated_tokens"), each("flops"), each("seconds"), each("dollars"),
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
            one, other, d.mean, d.low, d.high, d.total, won, lost, "McNemar, exact", d.p_value, d.p_value
        )
    if len({a - b for a, b in both}) == 1:  # also where there is one problem only
        gap = both[0][0] - both[0][1]
        (low, high), p = constant_sample_interval(gap, len(both), least=-1.0), sign_flip_test([a - b for a, b in both])
    else:
        m = paired_means([[a] for a, _ in both], [[b] for _, b in both])
        gap, low, high, p = m.mean, m.low, m.high, m.p_value
    return PairwiseResult(one, other, gap, low, high, len(both), won, lost, "Student, sign flips", p, p)


def holm_correction(pairs: Sequence[PairwiseResult]) -> list[PairwiseResult]:
    """p-values of several tests, made larger so that the chance of any false alarm stays 5 %."""
    order = sorted(range(len(pairs)), key=lambda i: pairs[i].p_value)
    out, top = list(pairs), 0.0
    for place, i in enumerate(order):
        top = max(top, min(1.0, pairs[i].p_value * (len(pairs) - place)))
        out[i] = replace(pairs[i], adjusted_p_value=top)
    return out
