"""Several jobs in a row, each an ordinary run in its own folder. A stage that is done is not done again.

A later stage names an earlier one's model as `stage:NAME`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Silent, Watch
from ponder.runs import Run

_REFERENCE = "stage:"


@dataclass(frozen=True)
class Stage:
    name: str
    job: Any  # FineTune, RL, Evaluate: a frozen dataclass that runs as job(folder, watch)


@dataclass(frozen=True)
class Stages:
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        names = [s.name for s in self.stages]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"stages need names, each once; these are {names}")
        for i, stage in enumerate(self.stages):
            wanted = _wanted(stage)
            if wanted is not None and wanted not in names[:i]:
                raise UnknownName("earlier stage", wanted, names[:i])

    def __call__(self, folder: str | Path, watch: Watch | None = None) -> dict[str, Any]:
        """What each stage returned, by name."""
        watch = watch or Silent()
        results = {}
        with Run(folder, self) as run:
            for stage in self.stages:
                watch.phase(stage.name)
                job: Callable[..., Any] = stage.job
                if (wanted := _wanted(stage)) is not None:
                    job = replace(stage.job, model=str(run.folder / wanted))
                results[stage.name] = job(run.folder / stage.name, watch)
        return results


def _wanted(stage: Stage) -> str | None:
    """The earlier stage whose model this one takes."""
    model = getattr(stage.job, "model", None)
    return model.removeprefix(_REFERENCE) if isinstance(model, str) and model.startswith(_REFERENCE) else None
