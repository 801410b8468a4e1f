"""The traces of requests, in a run directory that `ponder traces` and the other readers of runs open."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from ponder.errors import UsageError
from ponder.models.base_policy import BasePolicy
from ponder.pipelines.job.record_tokens import record_tokens
from ponder.runs import Run
from ponder.runs.trace_store import count_records
from ponder.serve.events import Finished
from ponder.types import Trace


@dataclass(frozen=True)
class ServeJob:
    """What a run directory of a server is of."""

    models: tuple[str, ...]
    template: str | None = None


class TraceLog:
    """A context manager. `keep` returns at once; a thread writes. A server that starts again appends."""

    def __init__(self, folder: Path, job: ServeJob, policies: Iterable[BasePolicy] = ()) -> None:
        if folder.is_file():
            raise UsageError(f"{folder} is a file; traces go into a folder: name another, or one that is not there yet")
        self._policies = list(policies)
        self._stack, self._run = ExitStack(), Run(folder, job)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._step = count_records(folder)

    def __enter__(self) -> TraceLog:
        self._stack.enter_context(self._run)
        for policy in self._policies:
            record_tokens(self._run, policy)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._writer.shutdown(wait=True)
        self._stack.__exit__(kind, error, tb)

    def keep(self, request_id: str, finished: Finished) -> None:
        """Write the traces of a request, one for each choice; the problem's id is the request's."""
        self._writer.submit(self._write, request_id, finished.traces)

    def write(self, trace: Trace) -> None:
        """Write one trace."""
        self._writer.submit(self._write_step, trace)

    def _write_step(self, trace: Trace) -> None:
        self._run.write_traces(self._step, [trace])
        self._step += 1

    def _write(self, request_id: str, traces: tuple[Trace, ...]) -> None:
        for trace in traces:
            named = replace(trace, problem=replace(trace.problem, id=request_id), steps=list(trace.steps))
            self._write_step(named)
