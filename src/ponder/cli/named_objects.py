"""Objects that a flag names, with their settings: a task, an algorithm, anything in a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ponder.cli import flags
from ponder.errors import UsageError
from ponder.settings import Named

TASKS = "ponder.tasks:TASKS"
DATA_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")


def settings_prefix(field: str, named: Named) -> str:
    """The prefix of the dotted settings of a named object."""
    return "task" if TASKS in named.tables else field


def build_named(field: str, named: Named, name: str, settings: Mapping[str, Any]) -> Any:
    """The object that a field names, with its settings; a file stays its path, where the field allows one."""
    if TASKS in named.tables:
        if not (named.or_file and is_data_file(name)):
            return build_task(name, settings)
        if settings:
            raise UsageError(f"--task.{next(iter(settings))} is a task's setting, and {name} is a file: leave it out")
        return name
    from ponder import registry

    tables = {key: kind for table in named.tables for key, kind in registry.import_object(table).items()}
    return flags.build_with_settings(field, registry.lookup(field, name, tables), settings, field)


def build_task(name: str, settings: Mapping[str, Any], prefix: str = "task") -> Any:
    """A task by name, `name:part` or `module:object`, with its settings."""
    from ponder.tasks import find

    kind, settings = find(name, settings)
    task = flags.build_with_settings("task", kind, settings, prefix)
    if not hasattr(task, "verifier"):
        raise UsageError(f"{name} is no task: it needs problems (train, test) and a verifier")
    return task


def build_algorithm(name: str, settings: Mapping[str, Any], beta: float | None) -> Any:
    """An algorithm by name, with its settings and the weight of its KL term."""
    from dataclasses import fields, replace

    from ponder import registry
    from ponder.train.algorithms import ON_POLICY
    from ponder.train.objective import KL

    plain = {key: text for key, text in settings.items() if not key.startswith("kl.")}
    objective = flags.build_with_settings(
        "algorithm", registry.lookup("algorithm", name, ON_POLICY), plain, "algorithm"
    )
    changes = {key.removeprefix("kl."): text for key, text in settings.items() if key.startswith("kl.")}
    if beta is None and not changes:
        return objective
    if "kl" not in [f.name for f in fields(objective)]:
        own = ", and its own beta is --algorithm.beta" if hasattr(objective, "beta") else ""
        raise UsageError(f"the algorithm {name} has no KL term: leave out --beta{own}")
    if beta is not None and "beta" in changes:
        raise UsageError("--beta and --algorithm.kl.beta are the same setting: give one of them")
    others = [key for key in changes if key != "beta"]
    weight = beta if beta is not None else flags.parse_value(float, changes["beta"]) if "beta" in changes else None
    if weight == 0 or (weight is None and objective.kl is None):
        if others:
            raise UsageError(
                f"--algorithm.kl.{others[0]} changes nothing, since the KL term has no weight: give --beta too"
            )
        return replace(objective, kl=None)
    current = {} if objective.kl is None else {f.name: str(getattr(objective.kl, f.name)) for f in fields(objective.kl)}
    given = current | changes | ({} if weight is None else {"beta": str(weight)})
    return replace(objective, kl=flags.build_with_settings("KL term", KL, given, "algorithm.kl"))


def is_data_file(source: str) -> bool:
    """Whether this is a file of data, and not the name of a task."""
    from ponder.tasks import TASKS

    return Path(source).suffix in DATA_SUFFIXES or (source not in TASKS and Path(source).is_file())
