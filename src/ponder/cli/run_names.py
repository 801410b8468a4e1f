"""The run directory of a command without --run: runs/grpo-addition-smollm2-3f9a1c, or runs/star of a recipe.

The last part is a hash of the job's settings. So the same command finds its run again and resumes, and a command with
another setting has a run of its own. A number of training steps is not part of it: a larger --steps goes on with the
same run.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

RUNS_FOLDER = Path("runs")
DIGEST_CHARS = 6


def default_run_folder(job: Any, *names: str) -> Path:
    """Where a job runs if the user does not say: these names and a hash of its settings."""
    return RUNS_FOLDER / "-".join([*map(path_slug, names), settings_digest(job)])


def recipe_run_folder(name: str, recipe: Callable[..., Any], given: Mapping[str, Any]) -> Path:
    """Where a recipe runs if the user does not say: runs/star; with another model or task than the recipe's own,
    runs/star-smollm2-gsm8k. No other flag changes the name: a pipeline that stopped goes on after one is corrected."""
    own = inspect.signature(recipe).parameters
    changed = [str(given[flag]) for flag in ("model", "task") if flag in given and given[flag] != own[flag].default]
    return RUNS_FOLDER / "-".join(map(path_slug, [name, *changed]))


def settings_digest(job: Any) -> str:
    """A few hexadecimal digits of the settings that differ from their defaults: a new setting changes no name."""
    from ponder.runs.cleanup import is_training_job, without_steps

    changed = _changed_settings(job)
    text = json.dumps(without_steps(changed) if is_training_job(job) else changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def _changed_settings(value: Any) -> Any:
    """An encoded job without the fields that have their defaults."""
    from ponder.runs import job_json

    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        pairs = ((f, getattr(value, f.name)) for f in fields(value) if f.init)
        changed = {f.name: _changed_settings(v) for f, v in pairs if not _is_default(f, v)}
        return {"is": f"{kind.__module__}:{kind.__qualname__}", **changed}
    if isinstance(value, list | tuple):
        return [_changed_settings(v) for v in value]
    return job_json.encode(value)


def _is_default(field: Field[Any], value: Any) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(default is not MISSING and type(default) is type(value) and default == value)


def path_slug(name: str) -> str:
    """A name or path as part of a directory's name."""
    parts = [p for p in Path(name).parts if p not in ("/", "..", ".", "runs")]
    return re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(parts[-2:])).strip("-") or "model"
