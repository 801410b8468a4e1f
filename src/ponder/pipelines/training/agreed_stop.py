"""A stop that all ranks agree on: a signal reaches them at different moments, and a rank that left a step would leave
the others waiting for its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ponder.errors import Interrupted
from ponder.protocols import Progress
from ponder.train.distributed import DataParallelGroup
from ponder.types import Trace


class AgreedStop:
    """A `Progress` that keeps an `Interrupted` until `raise_if_any`, which all ranks call between two steps."""

    def __init__(self, progress: Progress, group: DataParallelGroup) -> None:
        self._progress, self._group = progress, group
        self._pending: Interrupted | None = None

    def phase(self, name: str) -> None:
        self._forward(lambda: self._progress.phase(name))

    def tokens(self, count: int) -> None:
        self._forward(lambda: self._progress.tokens(count))

    def share(self, done: float) -> None:
        self._forward(lambda: self._progress.share(done))

    def step(self, done: int, total: int, metrics: Mapping[str, float], traces: Sequence[Trace]) -> None:
        self._forward(lambda: self._progress.step(done, total, metrics, traces))

    def raise_if_any(self) -> None:
        """Raise on all ranks if one was interrupted."""
        if self._group.any(self._pending is not None):
            raise self._pending or Interrupted("stopped; what was done is saved, and the same command goes on")

    def _forward(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Interrupted as stop:
            self._pending = stop
