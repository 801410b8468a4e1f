"""Several jobs in a row, each an ordinary run in its own folder. A stage that is done is not done again.

A later stage names an earlier one anywhere in its job: `stage:NAME` is its run directory (and so its model), and
`stage:NAME/data.jsonl` a file in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from ponder.errors import Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import Silent, Watch
from ponder.runs import Run

_REFERENCE = re.compile(r"stage:([^/\s]+)")


@dataclass(frozen=True)
class Stage:
    name: str
    job: Any  # FineTune, RL, Evaluate, Harvest ...: a frozen dataclass that runs as job(folder, watch)


@dataclass(frozen=True)
class Stages:
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        names = [s.name for s in self.stages]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"stages need names, each once; these are {names}")
        for i, stage in enumerate(self.stages):
            if stage.name in ("", ".", "..") or _REFERENCE.fullmatch(f"stage:{stage.name}") is None:
                raise UsageError(f"a stage's name is a folder's: {stage.name!r} has a space or a slash, or is none")
            for wanted in mentioned(stage.job):
                if wanted not in names[:i]:
                    raise UnknownName("earlier stage", wanted, names[:i])

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> dict[str, Any]:
        """What each stage returned, by name."""
        watch = watch or Silent()
        results = {}
        with Run(folder, self) as run:
            for stage in self.stages:
                watch.phase(stage.name)
                try:
                    results[stage.name] = settled(stage.job, run.folder.resolve())(run.folder / stage.name, watch)
                except Interrupted:
                    raise
                except PonderError as why:
                    why.args = (f"stage {stage.name!r}: {why}",)  # the same error, which says where
                    raise
        return results


def settled(job: Any, folder: Path) -> Any:
    """A job with the folders of earlier stages in place of their names."""
    return _each_text(job, lambda text: _REFERENCE.sub(lambda found: str(folder / found[1]), text))


def mentioned(job: Any) -> list[str]:
    """Names of the stages that a job takes something from."""
    found: list[str] = []

    def note(text: str) -> str:
        found.extend(_REFERENCE.findall(text))
        return text

    _each_text(job, note)
    return found


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The same, with every text that names a stage changed, however deep it stands."""
    if isinstance(value, str):
        return change(value) if "stage:" in value else value
    if isinstance(value, tuple):
        return tuple(_each_text(v, change) for v in value)
    if isinstance(value, list):
        return [_each_text(v, change) for v in value]
    if isinstance(value, dict):
        return {k: _each_text(v, change) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        changed = {k: new for k, v in given.items() if (new := _each_text(v, change)) is not v}
        return replace(value, **changed) if any(changed[k] != given[k] for k in changed) else value
    return value
