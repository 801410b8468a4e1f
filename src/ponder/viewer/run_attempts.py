"""Runs as the attempts that `ponder.measure` compares, and in which trace the attempts at each problem are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ponder.errors import PonderError, UsageError
from ponder.measure.readers.attempts import Attempts
from ponder.measure.readers.run_directory import read_run
from ponder.runs.trace_store import TRACE_FILES, index_traces
from ponder.terminal import format_bytes
from ponder.viewer.plain_files import file_size
from ponder.viewer.run_listing import RunFolder

MAX_RUNS = 20
MAX_TRACE_BYTES = 1 << 30  # of one run: all of its traces are read
_CACHED_RUNS = 20


@dataclass(frozen=True, slots=True)
class RunAttempts:
    id: str
    attempts: Attempts
    numbers: dict[str, int]  # by problem, the number of its trace


class AttemptsLibrary:
    """Reads runs, and keeps the last ones as long as their files stay the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Path, tuple[int, ...]], RunAttempts] = OrderedDict()

    def read(self, folders: Sequence[RunFolder], least: int) -> list[RunAttempts]:
        _check_choice(folders, least)
        with self._lock:
            return [self._read(folder) for folder in folders]

    def read_most(self, folders: Sequence[RunFolder]) -> tuple[list[RunAttempts], list[str]]:
        """The runs that can be read, and for each of the others why it is left out. Raises where none can."""
        _check_choice(folders, 1)
        runs: list[RunAttempts] = []
        errors: list[PonderError] = []
        notes: list[str] = []
        with self._lock:
            for folder in folders:
                try:
                    runs.append(self._read(folder))
                except PonderError as why:
                    errors.append(why)
                    notes.append(f"{folder.name} is left out: {why}")
        if not runs:
            raise errors[0]
        return runs, notes

    def _read(self, folder: RunFolder) -> RunAttempts:
        sizes = tuple(file_size(folder.path / name) for name in TRACE_FILES)
        if sum(sizes) > MAX_TRACE_BYTES:
            raise UsageError(
                f"{folder.name} has {format_bytes(sum(sizes))} of traces, more than a page can wait for: give it to"
                " `ponder compare`"
            )
        key = folder.path, sizes
        if key not in self._known:
            attempts = replace(_read_run(folder), name=folder.name)
            self._known[key] = RunAttempts(folder.id, attempts, _trace_numbers(folder.path))
            while len(self._known) > _CACHED_RUNS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]


def _check_choice(folders: Sequence[RunFolder], least: int) -> None:
    if not least <= len(folders) <= MAX_RUNS:
        raise UsageError(f"{len(folders)} runs were given; choose from {least} to {MAX_RUNS}")
    if len({folder.id for folder in folders}) < len(folders):
        raise UsageError("a run was given twice: choose each once")


def _read_run(folder: RunFolder) -> Attempts:
    """The run's attempts. Where a command would be told to name the scorer, the page says which command it is."""
    try:
        return read_run(folder.path)
    except UsageError as why:
        if "--column" not in str(why):
            raise
        raise UsageError(
            f"{folder.name} does not say who judges its answers, since its task cannot be loaded here: give it to"
            " `ponder compare`, which takes the scorer as --column correct=NAME"
        ) from None


def _trace_numbers(folder: Path) -> dict[str, int]:
    """By the name that `read_run` gives a problem: of a training run with its step, and a count where it came again."""
    entries = index_traces(folder)
    if not any(entry.step for entry in entries):
        return {entry.problem_id: entry.number for entry in entries}
    numbers: dict[str, int] = {}
    seen: dict[str, int] = {}
    for entry in entries:
        name = f"step {entry.step + 1}: {entry.problem_id}"
        seen[name] = seen.get(name, 0) + 1
        numbers[name if seen[name] == 1 else f"{name} ({seen[name]})"] = entry.number
    return numbers
