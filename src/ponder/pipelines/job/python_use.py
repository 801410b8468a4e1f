"""A job that Python calls, `job("runs/x")`, in a script or a notebook, as the command line would run it.

It shows the lines of the command line where somebody reads them: if stderr is a terminal, or in a notebook. A given
progress takes their place; `job("runs/x", NoProgress())` shows nothing. Calls of the user's code that take long are
reported, and a job that fails before its first step leaves no run directory.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ponder.protocols import NoProgress, Progress

_inside_job: ContextVar[bool] = ContextVar("inside_job", default=False)


def run_as_user_would(call: Callable[..., Any]) -> Callable[..., Any]:
    """A job's `__call__` with all that, unless another job calls it."""

    @functools.wraps(call)
    def run(self: Any, folder: str | Path, *args: Any, **named: Any) -> Any:
        if _inside_job.get():
            return call(self, folder, *args, **named)
        from ponder.runs.cleanup import remove_failed_start

        given = next((value for value in (*args, *named.values()) if value is not None), None)
        token = _inside_job.set(True)
        try:
            with remove_failed_start(Path(folder)):
                if given is not None:
                    return call(self, folder, *args, **named)
                with _shown_progress(self, Path(folder)) as progress:
                    return call(self, folder, progress)
        finally:
            _inside_job.reset(token)

    return run


def shows_progress() -> bool:
    """Whether somebody reads stderr: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextlib.contextmanager
def _shown_progress(job: Any, folder: Path) -> Iterator[Progress]:
    if not shows_progress():
        yield NoProgress()
        return
    from ponder.pipelines.job.progress_lines import NeverStops, ProgressLines, resume_progress
    from ponder.pipelines.job.slow_calls import report_slow_calls

    with ProgressLines(job.title, NeverStops(), folder, job.unit) as progress, report_slow_calls():
        resume_progress(progress, job, folder)
        yield progress
