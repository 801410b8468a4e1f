"""Traces by step, problem and number."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_runs import write_run
from ponder.errors import RunError
from ponder.runs import Run, read_traces
from ponder.runs.job_json import decode
from ponder.runs.run_dir import read_job
from ponder.runs.trace_index import index_traces, read_indexed
from ponder.trace_json import trace_to_json


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", [["a", "b"], ["c"], ["d"], ["e"]], steps=[0, 0, 1, 2])


def test_index_agrees_with_read_traces(run: Path) -> None:
    entries = index_traces(run)
    assert [(e.number, e.step) for e in entries] == [(1, 0), (2, 0), (3, 1), (4, 2)]
    full = [(step, trace_to_json(trace)) for step, trace in read_traces(run)]
    assert [(e.step, trace_to_json(trace)) for e, trace in read_indexed(run, entries)] == full
    assert [e.problem_id for e in entries] == [trace["problem"]["id"] for _, trace in full]


def test_index_drops_what_a_resumption_replaced(run: Path) -> None:
    with Run(run, decode(read_job(run), trust=True)) as writer:
        writer.mark_resumed(1)
    assert [e.step for e in index_traces(run)] == [0, 0]
    assert len(list(read_traces(run))) == 2


def test_index_ignores_a_torn_last_line(run: Path) -> None:
    path = run / "traces.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert len(index_traces(run)) == 3


def test_only_a_damaged_trace_that_is_read_raises(run: Path) -> None:
    path = run / "traces.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"text":"c"', b'"text":"x"')
    path.write_bytes(b"".join(lines))
    entries = index_traces(run)
    assert [t.steps[1].text for _, t in read_indexed(run, entries[2:])] == ["d", "e"]
    with pytest.raises(RunError, match="line 2 is damaged"):
        list(read_indexed(run, entries))


def test_folder_without_traces_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        index_traces(tmp_path)
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(RunError, match="no traces yet"):
        index_traces(tmp_path)
