"""The run directory as a rank sees that does not own it: rank 0 writes all records, the others none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ponder.runs.kept_for_run import forget_kept
from ponder.runs.run_dir import Run
from ponder.types import Trace


class FollowerRun(Run):
    """A `Run` that takes no lock and writes nothing."""

    def __init__(self, folder: str | Path) -> None:  # opens none of the writers of a Run
        self.folder = Path(folder)
        self.job: Any = None
        self.result_metrics: dict[str, float] = {}

    def __enter__(self) -> FollowerRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        forget_kept()

    def write_metrics(self, step: int, values: Mapping[str, float], findings: Sequence[str] = ()) -> None:
        pass

    def prepare_traces(self, step: int, traces: Sequence[Trace]) -> None:
        pass

    def write_traces(self, step: int, traces: Iterable[Trace]) -> None:
        pass

    def mark_resumed(self, step: int, because: str = "") -> None:
        pass

    def verify_records(self, step: int, expected_counts: Mapping[str, int]) -> str:
        return ""

    def record_counts(self, step: int) -> dict[str, int]:
        return {}

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass
