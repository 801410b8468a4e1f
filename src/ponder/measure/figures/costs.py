"""What systems cost per problem and per sample, in the unit that a figure's axis has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ponder.errors import UsageError
from ponder.measure.readers.attempts import Attempts, ProblemAttempts

CostUnit = Literal["tokens", "flops", "seconds", "dollars"]
COST_UNITS: tuple[CostUnit, ...] = get_args(CostUnit)
COST_LABELS = {"tokens": "tokens written", "flops": "FLOPs", "seconds": "seconds", "dollars": "dollars"}


def problem_costs(system: Attempts, unit: CostUnit) -> list[float] | None:
    """Of each problem; None where any is unknown, or all are 0, which is how what nobody counted stands."""
    costs = [_cost(g, unit) for g in system.groups]
    known = [c for c in costs if c is not None]
    return known if len(known) == len(costs) and any(known) else None


def require_problem_costs(system: Attempts, unit: CostUnit) -> list[float]:
    costs = problem_costs(system, unit)
    if costs is None:
        raise UsageError(f"{system.name} does not tell its {unit}: choose another --cost, or leave it out")
    return costs


def sample_cost(system: Attempts, unit: CostUnit) -> float:
    """The mean cost of one attempt."""
    attempts = sum(g.size for g in system.groups)
    if not attempts:
        raise UsageError(f"{system.name} has no attempt, so no cost of one")
    return sum(require_problem_costs(system, unit)) / attempts


def common_cost_unit(systems: Sequence[Attempts], unit: CostUnit | None = None) -> CostUnit:
    """The unit that was asked for, else the first in which every system tells its cost."""
    if unit is not None:
        return unit
    for candidate in COST_UNITS:
        if all(problem_costs(s, candidate) is not None for s in systems):
            return candidate
    raise UsageError("the systems have no cost in common (tokens, flops, seconds, dollars): their logs do not tell it")


def _cost(group: ProblemAttempts, unit: CostUnit) -> float | None:
    if group.cost is not None:
        return float(getattr(group.cost, "generated_tokens" if unit == "tokens" else unit))
    if unit == "tokens" and group.tokens is not None and None not in group.tokens:
        return float(sum(t or 0 for t in group.tokens))
    return None
