"""Names in a job, as on the command line: `RL(task="addition", algorithm="dapo", strategy="samples")`,
`FineTune("addition")`."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ponder import registry
from ponder.errors import UsageError
from ponder.reason.named_strategies import find_strategy
from ponder.tasks import TASKS, find


def resolve_names(job: Any) -> None:
    """Replace each name in a new job's `task`, `strategy`, `algorithm`, `curriculum` and `rollout_correction` by what
    it stands for; also that of a task in its `data`, which else names a file.

    A strategy that brings a guide of its own sets the job's guide, unless the job names another.
    """
    if isinstance(task := getattr(job, "task", None), str):
        object.__setattr__(job, "task", find_task(task))
    if isinstance(data := getattr(job, "data", None), str) and _names_task(data):
        object.__setattr__(job, "data", find_task(data))
    if isinstance(strategy := getattr(job, "strategy", None), str):
        built, guide = find_strategy(strategy)
        object.__setattr__(job, "strategy", built)
        if guide and not getattr(job, "guide", guide):
            object.__setattr__(job, "guide", guide)
    if isinstance(algorithm := getattr(job, "algorithm", None), str):
        from ponder.train.algorithms import OFFLINE, ON_POLICY

        table = ON_POLICY if hasattr(job, "curriculum") else OFFLINE
        object.__setattr__(job, "algorithm", _build("algorithm", algorithm, table))
    if isinstance(curriculum := getattr(job, "curriculum", None), str):
        from ponder.pipelines.problems.curriculum import CURRICULA

        object.__setattr__(job, "curriculum", _build("curriculum", curriculum, CURRICULA))
    if isinstance(correction := getattr(job, "rollout_correction", None), str):
        from ponder.train.rollout_correction import ROLLOUT_CORRECTIONS

        built = _build("rollout correction", correction, ROLLOUT_CORRECTIONS)
        object.__setattr__(job, "rollout_correction", built)


def find_task(name: str) -> Any:
    """The task of this name (`addition`, `bbh:navigate`, `file.py:name`) with its own settings."""
    kind, settings = find(name)
    if not isinstance(kind, type):
        return kind
    needed = [
        f.name
        for f in fields(kind)
        if f.init and f.default is MISSING and f.default_factory is MISSING and f.name not in settings
    ]
    if needed:
        raise UsageError(
            f"the task {name!r} needs {', '.join(needed)}: give {kind.__name__}({needed[0]}=...) in place of its name"
        )
    return kind(**settings)


def _names_task(data: str) -> bool:
    """Whether this is a task (`addition`, `bbh:navigate`, `file.py:name`), and no file of rows."""
    family, _, part = data.partition(":")
    if data in TASKS or (part and hasattr(TASKS.get(family), "PART_SETTING")):
        return True
    return bool(part) and family.endswith(".py") and not Path(data).is_file()


def _build(kind: str, name: str, table: Any) -> Any:
    entry = registry.lookup(kind, name, table)
    return entry() if isinstance(entry, type) else entry
