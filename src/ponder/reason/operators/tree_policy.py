"""Traverse: which child of a step a tree search visits next, the priors of children, and progressive widening.

Each selection rule is its paper's formula, a pure function. Letters: N visits of the parent, and n, q, p of a child:
its visits, the mean value below it, its prior.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ponder.errors import UsageError
from ponder.types import Trace

ChildValues = Sequence[float]
ChildVisits = Sequence[int]


@dataclass(frozen=True, slots=True)
class UCT:
    """q + c sqrt(ln N / n); unvisited children come first (Kocsis and Szepesvári 2006)."""

    c: float = math.sqrt(2)

    def __post_init__(self) -> None:
        _check_not_negative(c=self.c)

    def scores(self, visits: int, value: float, n: ChildVisits, q: ChildValues, p: ChildValues) -> list[float]:
        log_visits = math.log(1 + sum(n))  # N: one visit expanded the parent, the others went to a child
        return [y + self.c * math.sqrt(log_visits / x) if x else math.inf for x, y in zip(n, q, strict=True)]


@dataclass(frozen=True, slots=True)
class PUCT:
    """q + p sqrt(N) / (1 + n) (c1 + log((N + c2 + 1) / c2)), with AlphaZero's and mctx's numbers (Silver et al. 2018).

    q is scaled to 0..1: between `low` and `high`, or, where none are given, between the lowest and the highest of the
    siblings' values and the parent's (Schrittwieser et al. 2020). A child never visited has 0.
    """

    c1: float = 1.25
    c2: float = 19652.0
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        _check_not_negative(c1=self.c1, c2=self.c2)
        if (self.low is None) != (self.high is None):
            raise UsageError("PUCT scales values between low and high: give both, or none to scale by the siblings")
        if self.low is not None and self.high is not None:
            _check_value_range(self.low, self.high)

    def scores(self, visits: int, value: float, n: ChildVisits, q: ChildValues, p: ChildValues) -> list[float]:
        N = 1 + sum(n)
        weight = math.sqrt(N) * (self.c1 + math.log((N + self.c2 + 1) / self.c2))
        if self.low is None or self.high is None:
            values = [value, *(y for x, y in zip(n, q, strict=True) if x)]
            low, high = min(values), max(values)
        else:
            low, high = self.low, self.high
        span = max(high - low, 1e-8)
        return [
            (y - low) / span + prior * weight / (1 + x) if x else prior * weight
            for x, y, prior in zip(n, q, p, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class X1:
    """q + sqrt(N - 1) / (1 + n) (c1 + log((N + c2) / c2)): no prior, q scaled to 0..1 (Besta et al. 2025).

    `low` and `high` bound the guide's scores; x1's own rewards lie between -1 and 1.
    """

    c1: float = 1.25
    c2: float = 19652.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _check_not_negative(c1=self.c1, c2=self.c2)
        _check_value_range(self.low, self.high)

    def scores(self, visits: int, value: float, n: ChildVisits, q: ChildValues, p: ChildValues) -> list[float]:
        weight = math.sqrt(max(0, visits - 1)) * (self.c1 + math.log((visits + self.c2) / self.c2))
        span = self.high - self.low
        return [(y - self.low) / span + weight / (1 + x) for x, y in zip(n, q, strict=True)]


SelectionRule = UCT | PUCT | X1
SELECTION_RULES: dict[str, type[SelectionRule]] = {"uct": UCT, "puct": PUCT, "x1": X1}


def open_children(trace: Trace, parent: int) -> list[int]:
    """The children that a search can descend to: neither rollouts (`last`) nor pruned or meta steps."""
    steps = trace.steps
    return [k for k in trace.children(parent) if not ((s := steps[k]).last or s.pruned or s.meta)]


def select_child(
    trace: Trace, parent: int, children: Sequence[int], rule: SelectionRule, in_flight: Mapping[int, int] | None = None,
    virtual_loss: float | None = None, two_player: bool = False,
) -> int:  # fmt: skip
    """The child with the highest score, the first of equals.

    `in_flight`: visits in flight, by step. Each counts as a visit already, with the value `virtual_loss` (Segal 2010),
    or, if that is None, with the step's current value (Liu et al. 2020).
    """
    steps = trace.steps
    here = steps[parent]
    n = [steps[k].visits for k in children]
    q = [steps[k].value for k in children]
    visits = here.visits
    if in_flight:
        visits += in_flight.get(parent, 0)
        for place, k in enumerate(children):
            if more := in_flight.get(k, 0):
                if virtual_loss is not None:
                    q[place] = (q[place] * n[place] + virtual_loss * more) / (n[place] + more)
                n[place] += more
    value = -here.value if two_player else here.value
    scores = rule.scores(visits, value, n, q, [steps[k].prior for k in children])
    return children[scores.index(max(scores))]


def _check_not_negative(**numbers: float) -> None:
    for name, number in numbers.items():
        if not (number >= 0 and math.isfinite(number)):
            raise UsageError(f"{name} is {number}; it must be 0 or positive")


def _check_value_range(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"values are scaled between low {low} and high {high}: low must be the lower, both finite")


@dataclass(frozen=True, slots=True)
class ProgressiveWidening:
    """A step visited n times may have ceil(k n^alpha) children (Coulom 2007)."""

    k: float = 2.0
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not (self.k > 0 and 0 <= self.alpha <= 1):
            raise UsageError(f"widening has k {self.k} and alpha {self.alpha}: k > 0, alpha within 0 to 1")

    def max_children(self, visits: int) -> int:
        return math.ceil(round(self.k * max(1, visits) ** self.alpha, 9))


@dataclass(frozen=True, slots=True)
class DirichletNoise:
    """(1 - fraction) p + fraction Dirichlet(alpha): AlphaZero's, at the root (chess 0.3, Go 0.03)."""

    alpha: float = 0.3
    fraction: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.alpha > 0 or not 0 <= self.fraction <= 1:
            raise UsageError(
                f"noise has alpha {self.alpha} and fraction {self.fraction}: alpha > 0, fraction within 0 to 1"
            )
        if self.seed < 0:
            raise UsageError(f"the noise's seed is {self.seed}; it must be 0 or positive")

    def add_to(self, priors: Sequence[float]) -> list[float]:
        noise = np.random.default_rng([self.seed, len(priors)]).dirichlet([self.alpha] * len(priors))
        return [(1 - self.fraction) * p + self.fraction * float(d) for p, d in zip(priors, noise, strict=True)]


def softmax_priors(logprobs: Sequence[float], temperature: float = 1.0) -> list[float]:
    """p_i = exp(l_i / T) / sum_j exp(l_j / T). Uniform if the policy does not return probabilities (NaN)."""
    if not logprobs:
        return []
    scaled = [x / temperature for x in logprobs]
    highest = max(scaled)
    if any(math.isnan(x) for x in scaled) or not math.isfinite(highest):
        return [1 / len(scaled)] * len(scaled)
    powers = [math.exp(x - highest) for x in scaled]
    total = sum(powers)
    return [x / total for x in powers]


def set_priors(
    trace: Trace, siblings: Sequence[int], temperature: float = 1.0, noise: DirichletNoise | None = None
) -> None:
    """Set the priors of siblings: their sequence probabilities, normalised among each other."""
    steps = [trace.steps[i] for i in siblings]
    priors = softmax_priors(
        [float(s.logprobs.sum()) if s.logprobs is not None else math.nan for s in steps], temperature
    )
    for step, prior in zip(steps, noise.add_to(priors) if noise and priors else priors, strict=True):
        step.prior = prior
