"""Choose a strategy for each problem under one budget for all.

A multiple-choice knapsack. Each problem's options on the upper hull of success against cost are climbed in order of
gain per cost (Lagrange's price of compute, falling); what is left of the budget goes to the best upgrades that fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ponder.errors import UsageError

MAX_SEARCH_STATES = 200_000  # partial choices that the exact search may keep


@dataclass(frozen=True, slots=True)
class StrategyOption:
    """A way to treat a problem: what it is called, costs, and how likely it succeeds."""

    name: str
    cost: float
    success_probability: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cost) and self.cost >= 0 and math.isfinite(self.success_probability)):
            raise UsageError(f"the option {self.name!r} needs a cost of at least 0 and a known success")


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """An option for each problem, what they cost and bring together, and what no choice can exceed."""

    options: tuple[StrategyOption, ...]
    cost: float
    success: float
    upper_bound: float


def choose_strategies(
    problems: Sequence[Sequence[StrategyOption]], budget: float, exact: bool = False
) -> StrategyChoice:
    """The options of the largest total success within the budget: exactly, or within `bound` minus `success` of it."""
    _check_options(problems, budget)
    hulls = [_upper_hull(options) for options in problems]
    picked, bound = _greedy_climb(hulls, budget)
    if exact:
        choice = _exact_search(problems, budget)
        return StrategyChoice(choice, _total_cost(choice), _total_success(choice), _total_success(choice))
    full = _spend_remainder(problems, picked, budget)
    return StrategyChoice(tuple(full), _total_cost(full), _total_success(full), bound)


def _check_options(problems: Sequence[Sequence[StrategyOption]], budget: float) -> None:
    if not problems or any(not options for options in problems):
        raise UsageError("every problem needs at least one option; to skip one, offer an option of cost 0")
    least = sum(min(o.cost for o in options) for options in problems)
    if not least <= budget + 1e-9:
        raise UsageError(f"the cheapest options cost {least:g} together, more than the budget of {budget:g}")


def _upper_hull(options: Sequence[StrategyOption]) -> list[StrategyOption]:
    """Options that are best at some price: each step costs more per gain than the one before."""
    hull: list[StrategyOption] = []
    for o in sorted(options, key=lambda o: (o.cost, -o.success_probability)):
        if hull and o.success_probability <= hull[-1].success_probability:
            continue
        while len(hull) > 1 and _gain_per_cost(hull[-2], o) >= _gain_per_cost(hull[-2], hull[-1]):
            hull.pop()
        if hull and o.cost == hull[-1].cost:
            hull.pop()
        hull.append(o)
    return hull


def _gain_per_cost(a: StrategyOption, b: StrategyOption) -> float:
    return (b.success_probability - a.success_probability) / (b.cost - a.cost) if b.cost > a.cost else math.inf


def _greedy_climb(hulls: list[list[StrategyOption]], budget: float) -> tuple[list[StrategyOption], float]:
    """Steps up all hulls by falling gain per cost until one does not fit; a part of that one gives the bound."""
    picked = [hull[0] for hull in hulls]
    spent, success = _total_cost(picked), _total_success(picked)
    steps = [(-_gain_per_cost(a, b), i, b) for i, hull in enumerate(hulls) for a, b in pairwise(hull)]
    for falling, i, b in sorted(steps, key=lambda s: s[:2]):
        more = b.cost - picked[i].cost
        if spent + more > budget + 1e-9:
            return picked, success + -falling * max(budget - spent, 0.0)
        spent, success = spent + more, success + b.success_probability - picked[i].success_probability
        picked[i] = b
    return picked, success


def _spend_remainder(
    problems: Sequence[Sequence[StrategyOption]], picked: list[StrategyOption], budget: float
) -> list[StrategyOption]:
    """Upgrades that still fit, the largest gain first."""
    chosen, left = list(picked), budget - _total_cost(picked)
    while True:
        fits = [
            (o.success_probability - chosen[i].success_probability, -(o.cost - chosen[i].cost), i, o)
            for i, options in enumerate(problems)
            for o in options
            if o.success_probability > chosen[i].success_probability and o.cost - chosen[i].cost <= left + 1e-9
        ]
        if not fits:
            return chosen
        _, _, i, o = max(fits, key=lambda f: f[:3])
        left -= o.cost - chosen[i].cost
        chosen[i] = o


def _exact_search(problems: Sequence[Sequence[StrategyOption]], budget: float) -> tuple[StrategyOption, ...]:
    """All choices, problem by problem, keeping of those that cost as much or more only the ones that bring more."""
    cheapest = [min(o.cost for o in options) for options in problems]
    states: list[tuple[float, float, tuple[StrategyOption, ...]]] = [(0.0, 0.0, ())]
    for at, options in enumerate(problems):
        rest = sum(cheapest[at + 1 :])
        grown = [(c + o.cost, s + o.success_probability, (*p, o)) for c, s, p in states for o in options]
        states, best = [], -math.inf
        for state in sorted((g for g in grown if g[0] + rest <= budget + 1e-9), key=lambda g: (g[0], -g[1])):
            if state[1] > best:
                states.append(state)
                best = state[1]
        if len(states) > MAX_SEARCH_STATES:
            raise UsageError(f"the exact choice over {len(problems)} problems is too large; leave out exact=True")
    return states[-1][2]


def _total_cost(options: Sequence[StrategyOption]) -> float:
    return math.fsum(o.cost for o in options)


def _total_success(options: Sequence[StrategyOption]) -> float:
    return math.fsum(o.success_probability for o in options)
