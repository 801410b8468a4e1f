"""The run directory of a server's traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from ponder.errors import UsageError
from ponder.runs import read_traces
from ponder.serve.events import Finished
from ponder.serve.trace_log import ServeJob, TraceLog
from ponder.serve.usage import Usage
from ponder.types import Problem, ids, prompt_trace, user_messages


def finished(question: str) -> Finished:
    trace = prompt_trace(Problem("request", user_messages(question)), ids([1, 2]))
    usage = Usage.from_traces([trace], 2, cached_tokens=0, sampled_tokens=0, content_tokens=0)
    return Finished(("stop",), usage, (trace,))


def test_server_that_starts_again_continues_the_numbers(tmp_path: Path) -> None:
    for start in (0, 2):
        with TraceLog(tmp_path / "served", ServeJob(("plain",))) as log:
            for i in range(start, start + 2):
                log.keep(f"chatcmpl-{i}", finished(f"{i}?"))
    stored = [(step, trace.problem.id, trace.problem.question) for step, trace in read_traces(tmp_path / "served")]
    assert stored == [(i, f"chatcmpl-{i}", f"{i}?") for i in range(4)]


def test_a_file_is_no_place_for_traces(tmp_path):
    place = tmp_path / "notes.txt"
    place.write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt is a file; traces go into a folder"):
        TraceLog(place, ServeJob(("plain",)))
    assert place.read_text() == "mine"
