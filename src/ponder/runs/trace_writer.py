"""Writes traces from a thread of its own, in order. The caller only copies them, unless the disk cannot keep up.

A training loop copies a step's traces while a GPU computes the step (`prepare`): the thread compresses them meanwhile,
and `append` then only says that they belong into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(slots=True)
class _PreparedTraces:
    """Traces that were copied, and are not in the file."""

    step: int
    traces: Sequence[Trace]
    blocks: list[PackedTraces]
    encoded: list[tuple[bytes, bytes]]  # directory and body of each block, when the thread has come to it


class TraceWriter:
    """Appends to a file of trace blocks. An error while it is written is raised by the next call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue = BackgroundQueue("traces", MAX_BACKLOG_BYTES)
        self._file: BlockWriter | None = None
        self._gives_up = False  # do not wait for disk space any longer
        self._prepared: _PreparedTraces | None = None

    def prepare(self, step: int, traces: Sequence[Trace]) -> None:
        """Copy traces as they are now, and compress them. Nothing is written before `append` gets the same traces of
        that step, which then takes no time; if it gets others, they are written and these are forgotten."""
        prepared = _PreparedTraces(step, list(traces), list(pack_traces(step, traces)), [])
        for packed in prepared.blocks:
            self._submit(partial(self._encode_ahead, prepared, packed), packed.num_bytes)
        self._prepared = prepared

    def append(self, step: int, traces: Iterable[Trace]) -> int:
        """Write traces of a step, as they are now or were when they were prepared. Returns how many."""
        given, prepared = list(traces), self._prepared
        self._prepared = None
        if prepared is not None and prepared.step == step and _are_same(prepared.traces, given):
            for i, packed in enumerate(prepared.blocks):
                self._submit(partial(self._write_prepared, prepared, i, packed))
            return len(given)
        for packed in pack_traces(step, given):
            self._submit(partial(self._write, packed), packed.num_bytes)
        return len(given)

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

    def _encode(self, packed: PackedTraces) -> tuple[bytes, bytes]:
        """Directory and body of a block. Its pictures are files of their own."""
        for record in packed.records:
            store = partial(store_pictures, record, self.path.parent)
            full_disk.retry_while_disk_full(store, self.path, 0, self._stopped)
        return packed.encode()

    def _encode_ahead(self, prepared: _PreparedTraces, packed: PackedTraces) -> None:
        prepared.encoded.append(self._encode(packed))

    def _write_prepared(self, prepared: _PreparedTraces, index: int, packed: PackedTraces) -> None:
        self._write(packed, prepared.encoded[index])

    def _write(self, packed: PackedTraces, encoded: tuple[bytes, bytes] | None = None) -> None:
        directory, body = self._encode(packed) if encoded is None else encoded
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


def _are_same(some: Sequence[Trace], others: Sequence[Trace]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
