"""Writes traces from a thread of its own, in order. The caller only copies them, unless the disk cannot keep up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ponder import full_disk, signals
from ponder.errors import PonderError, RunError
from ponder.runs.background_queue import BackgroundQueue
from ponder.runs.block_file import ITEMS, RESUMED, BlockWriter
from ponder.runs.picture_store import store_pictures
from ponder.runs.trace_blocks import PackedTraces, pack_traces
from ponder.types import Trace

MAX_BACKLOG_BYTES = 64 << 20  # not yet compressed; who writes more waits


class TraceWriter:
    """Appends to a file of trace blocks. An error while it is written is raised by the next call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue = BackgroundQueue("traces", MAX_BACKLOG_BYTES)
        self._file: BlockWriter | None = None
        self._gives_up = False  # do not wait for disk space any longer

    def append(self, step: int, traces: Iterable[Trace]) -> int:
        """Write traces of a step, as they are now. Returns how many."""
        count = 0
        for packed in pack_traces(step, traces):
            self._submit(partial(self._write, packed), packed.num_bytes)
            count += len(packed.summaries)
        return count

    def mark_resumed(self, step: int) -> None:
        """Mark that this step and later ones are written again. The mark is in the file when this returns."""
        self._submit(lambda: self._open().append(step, RESUMED))
        self.flush()

    def flush(self) -> None:
        """Wait until everything is in the file, where readers see it."""
        self._queue.wait()

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        if self._file is not None or not self._queue.is_idle:
            self._submit(lambda: self._open().sync())
        self.flush()

    def close(self, give_up: bool = False) -> str:
        """Write what is left and close the file. Returns what went wrong. `give_up`: do not wait for a full disk."""
        self._gives_up = give_up
        self._queue.close()
        if self._file is not None:
            self._file.close()
        return "" if self._queue.error is None else str(self._queue.error)

    def _write(self, packed: PackedTraces) -> None:
        for record in packed.records:
            store = partial(store_pictures, record, self.path.parent)
            full_disk.retry_while_disk_full(store, self.path, 0, self._stopped)
        directory, body = packed.encode()
        self._open().append(packed.step, ITEMS, len(packed.summaries), directory, body)

    def _open(self) -> BlockWriter:
        if self._file is None:
            make = lambda: BlockWriter(self.path, self._stopped)  # noqa: E731
            self._file = full_disk.retry_while_disk_full(make, self.path, 0, self._stopped)
        return self._file

    def _stopped(self) -> bool:
        return self._gives_up or signals.stop_requested()

    def _submit(self, task: Callable[[], object], num_bytes: int = 0) -> None:
        self._queue.submit(lambda: self._with_errors_of_runs(task), num_bytes)

    def _with_errors_of_runs(self, task: Callable[[], object]) -> None:
        try:
            task()
        except PonderError:
            raise
        except OSError as why:
            raise RunError(f"cannot write {self.path}: {why.strerror}; free some space and run again") from None
        except (TypeError, ValueError, RecursionError) as why:
            raise RunError(f"traces cannot be kept as JSON ({why}): answers and tags must be plain data") from None
