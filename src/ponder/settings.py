"""What an annotation can say of a setting, and the check that numbers are finite.

Commands, recipes and jobs write the help of a setting into its annotation, and the conditions under which it counts:

    lr: Annotated[float, "learning rate", GreaterThan(0)] = 1e-5
    algorithm: Annotated[str, Named("ponder.train.algorithms:ONLINE"), "credit rule and loss"] = "grpo"
    cost: Annotated[str | None, "what pareto pays in", When("kind", "pareto")] = None

`check_finite` allows infinity where it is a setting's default, where a class names the setting in `UNBOUNDED`, and for
limits: a score that nothing reaches, or a budget without end. It never allows NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from ponder.errors import UsageError

UNBOUNDED_FIELDS = (
    "threshold", "cutoff", "margin", "min_margin", "min_score", "min_reward", "stop_score", "dollars",
    "seconds", "cpu_seconds", "wall_seconds", "timeout", "timeout_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class When:
    """A condition on another setting: it has one of these values, or none of those in `other_than`; or, where no value
    is named, it was given at all. Where several settings are named, one that meets the condition is enough."""

    parameter: str | tuple[str, ...]
    values: tuple[Any, ...]
    other_than: tuple[Any, ...]

    def __init__(self, parameter: str | tuple[str, ...], *values: Any, other_than: tuple[Any, ...] = ()) -> None:
        object.__setattr__(self, "parameter", parameter)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "other_than", other_than)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.parameter,) if isinstance(self.parameter, str) else self.parameter

    def is_met(self, value: Any) -> bool:
        if self.values:
            return value in self.values
        return value not in self.other_than if self.other_than else value not in (None, "", [], (), {}, False)


@dataclass(frozen=True)
class GreaterThan:
    """The setting must be larger than this bound, where it is given."""

    bound: float


@dataclass(frozen=True)
class Named:
    """The setting is a name in these tables, each as `module:TABLE`, so that nothing is imported to write this down.

    `listed`: help lists the names. `or_file`: it may also be a file. `default`: the name that a command takes where
    none is given, in place of a job's own default.
    """

    tables: tuple[str, ...]
    listed: bool
    or_file: bool
    default: str | None

    def __init__(self, *tables: str, listed: bool = False, or_file: bool = False, default: str | None = None) -> None:
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "listed", listed)
        object.__setattr__(self, "or_file", or_file)
        object.__setattr__(self, "default", default)


@dataclass(frozen=True)
class SettingsOf:
    """A mapping of texts that is given as `--PREFIX.NAME VALUE`: the settings of what the flag PREFIX names.

    `target`: the dataclass (`module:Class`) where it is always the same one; help then lists its fields, but for those
    in `have_flags`, which have a flag of their own beside the dotted one.
    """

    prefix: str
    target: str = ""
    have_flags: tuple[str, ...] = ()


_ALWAYS_FINITE = frozenset((type(None), bool, int, str))  # most settings: a strategy is checked for each problem


def check_finite(thing: Any) -> None:
    """Refuse a job, or a part of one, with a number in it that is not finite, and say where it stands."""
    _check(thing, type(thing).__name__, False)


@cache
def _settings_of(kind: type) -> list[tuple[str, bool]]:
    """The fields of a dataclass, each with whether it may be infinite."""
    free = (*UNBOUNDED_FIELDS, *getattr(kind, "UNBOUNDED", ()))
    return [(f.name, f.name in free or (isinstance(f.default, float) and math.isinf(f.default))) for f in fields(kind)]


def _check(value: Any, path: str, infinite: bool) -> None:
    if value is None or isinstance(value, str | int):
        return
    if isinstance(value, float):
        if math.isnan(value) or (math.isinf(value) and not infinite):
            raise UsageError(f"{path} is {value}; it must be a finite number")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _check(inner, f"{path}[{i}]", infinite)
    elif is_dataclass(value) and not isinstance(value, type):
        for name, unbounded in _settings_of(type(value)):
            if type(inner := getattr(value, name, None)) not in _ALWAYS_FINITE:
                _check(inner, f"{path}.{name}", unbounded)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check(inner, f"{path}[{key!r}]", infinite)
