"""Traces written in the background: as they were, in order, and an error reaches whoever writes."""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.errors import RunError
from ponder.runs import Run, read_traces, trace_blocks, trace_writer
from ponder.runs.append_file import AppendFile
from ponder.runs.block_file import BlockReader
from ponder.runs.trace_blocks import TARGET_TOKENS, pack_traces
from ponder.runs.trace_store import TRACES_FILE
from ponder.runs.trace_writer import TraceWriter
from ponder.types import Problem, Score, Step, Trace, ids, user_messages


@dataclass(frozen=True)
class Job:
    steps: int = 3


def trace(name: str, tokens: int = 3) -> Trace:
    steps = [Step(None, "?", ids([1])), Step(0, name, ids(range(tokens)), np.zeros(tokens, np.float32), "eos")]
    return Trace(Problem(name, user_messages("?")), steps)


def names(folder: Path) -> list[str]:
    return [t.problem.id for _, t in read_traces(folder)]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written before this is set."""
    go, append = threading.Event(), AppendFile.append

    def wait(file: AppendFile, data: bytes) -> None:
        assert go.wait(30)
        append(file, data)

    monkeypatch.setattr(AppendFile, "append", wait)
    return go


def test_traces_are_written_as_they_were(tmp_path: Path, slow: threading.Event) -> None:
    writer, one = TraceWriter(tmp_path / TRACES_FILE), trace("one")
    assert writer.append(0, [one]) == 1
    assert one.steps[1].logprobs is not None
    one.steps[1].logprobs[:] = -9
    one.steps[1].token_ids[:] = 9
    one.steps[1].scores["late"] = Score(1.0)
    one.add(Step(1, "later", ids([5])))
    slow.set()
    writer.close()
    ((_, again),) = read_traces(tmp_path)
    assert len(again.steps) == 2 and again.steps[1].scores == {} and again.steps[1].token_ids.tolist() == [0, 1, 2]
    assert again.steps[1].logprobs is not None and again.steps[1].logprobs.tolist() == [0, 0, 0]


def test_flush_and_sync_wait_for_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_size), real(handle))[1])
    writer = TraceWriter(tmp_path / TRACES_FILE)
    writer.sync()
    assert not (tmp_path / TRACES_FILE).exists(), "there is nothing to write"
    for i in range(20):
        writer.append(i, [trace(str(i))])
    writer.flush()
    assert names(tmp_path) == [str(i) for i in range(20)]
    writer.append(20, [trace("20")])
    writer.sync()
    assert synced and synced[0] == (tmp_path / TRACES_FILE).stat().st_size and len(names(tmp_path)) == 21
    writer.close()


def test_backlog_is_bounded(tmp_path: Path, slow: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_writer, "MAX_BACKLOG_BYTES", 10_000)
    writer, done = TraceWriter(tmp_path / TRACES_FILE), []

    def write() -> None:
        for i in range(20):
            writer.append(i, [trace(str(i), tokens=500)])  # 4 kB
            done.append(i)

    thread = threading.Thread(target=write)
    thread.start()
    deadline = time.monotonic() + 60
    while not done and time.monotonic() < deadline:
        time.sleep(0.001)
    thread.join(0.3)
    assert thread.is_alive() and 1 <= len(done) <= 3
    slow.set()
    thread.join(120)
    writer.close()
    assert names(tmp_path) == [str(i) for i in range(20)]


def test_error_of_the_writer_reaches_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, count = AppendFile.append, 0

    def break_down(file: AppendFile, data: bytes) -> None:
        nonlocal count
        if file.path.name == TRACES_FILE:
            count += 1
            if count > 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        append(file, data)

    monkeypatch.setattr(AppendFile, "append", break_down)
    with pytest.raises(RunError, match=r"cannot write .*traces\.bin: Input/output error") as error:
        with Run(tmp_path, Job()) as run:
            for i in range(100):
                run.write_traces(i, [trace(str(i))])
                run.write_metrics(i, {"x": 1.0})
            run.sync()
    assert names(tmp_path) == ["0"] and not getattr(error.value, "__notes__", [])
    with pytest.raises(ZeroDivisionError) as other:
        with Run(tmp_path, Job()) as run:
            run.write_traces(0, [trace("a")])
            raise ZeroDivisionError
    assert "Input/output error" in other.value.__notes__[0], "the loop's own error is the one that is raised"


def test_what_was_written_before_an_error_of_the_loop_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with Run(tmp_path, Job()) as run:
            for i in range(50):
                run.write_traces(0, [trace(str(i))])
            raise ZeroDivisionError
    assert names(tmp_path) == [str(i) for i in range(50)] and not any(t.name == "traces" for t in threading.enumerate())


@pytest.mark.parametrize("answer", [object(), float("nan"), {1, 2}])
def test_answer_that_is_no_data_is_refused(tmp_path: Path, answer: Any) -> None:
    bad = Trace(Problem("bad", user_messages("?"), answer), [Step(None, "?", ids([1]))])
    with pytest.raises(RunError, match="answers and tags must be plain data"), Run(tmp_path, Job()) as run:
        run.write_traces(0, [trace("good")])
        run.write_traces(1, [bad])
    assert names(tmp_path) == ["good"]


def test_trace_that_is_too_large_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_blocks, "MAX_JSON_BYTES", 10_000)
    large = Trace(Problem("large", user_messages("?"), tags={"tests": "1 " * 6000}), [Step(None, "?", ids([1]))])
    with pytest.raises(RunError, match=r"^the trace of problem 'large' .* leave this problem out"):
        with Run(tmp_path, Job()) as run:
            run.write_traces(0, [trace("good")])
            run.write_traces(1, [large])
    assert names(tmp_path) == ["good"]


def test_array_of_two_dimensions_is_refused_at_once(tmp_path: Path) -> None:
    bad = trace("bad")
    bad.steps[1].notes["top"] = np.zeros((3, 2), np.float32)
    with Run(tmp_path, Job()) as run:
        with pytest.raises(RunError, match="notes/top has 2 dimensions"):
            run.write_traces(0, [bad])


def test_large_calls_become_several_blocks(tmp_path: Path) -> None:
    traces = [trace(str(i), tokens=TARGET_TOKENS // 4) for i in range(9)]
    assert [len(packed.summaries) for packed in pack_traces(0, traces)] == [4, 4, 1]
    with Run(tmp_path, Job()) as run:
        run.write_traces(0, traces)
    assert names(tmp_path) == [str(i) for i in range(9)]
    with BlockReader(tmp_path / TRACES_FILE) as reader:
        assert [(block.before, block.count) for block, _ in reader.scan()] == [(0, 4), (4, 4), (8, 1)]


def test_prepared_traces_are_written_as_they_were(tmp_path: Path) -> None:
    """Nothing is in the file before they are appended; then the bytes are those of traces that were only appended."""
    for name in ("prepared", "plain"):
        (tmp_path / name).mkdir()
        writer, both = TraceWriter(tmp_path / name / TRACES_FILE), [trace("one"), trace("two", TARGET_TOKENS)]
        if name == "prepared":
            writer.prepare(3, both)
            writer.flush()
            assert not (tmp_path / name / TRACES_FILE).exists()
            both[0].steps[1].text = "changed since"
        assert writer.append(3, both) == 2 and writer.close() == ""
    written = [(tmp_path / name / TRACES_FILE).read_bytes() for name in ("prepared", "plain")]
    assert written[0] == written[1] and names(tmp_path / "plain") == ["one", "two"]


@pytest.mark.parametrize(("step", "others"), [(1, False), (0, True)])
def test_other_traces_than_the_prepared_ones_are_written(tmp_path: Path, step: int, others: bool) -> None:
    writer, prepared = TraceWriter(tmp_path / TRACES_FILE), [trace("one")]
    writer.prepare(0, prepared)
    writer.append(step, [trace("two")] if others else prepared)
    writer.append(2, prepared)  # which are forgotten by now
    assert writer.close() == ""
    assert [(at, t.problem.id) for at, t in read_traces(tmp_path)] == [(step, "two" if others else "one"), (2, "one")]


def test_error_in_prepared_traces_reaches_the_writer(tmp_path: Path) -> None:
    writer, bad = TraceWriter(tmp_path / TRACES_FILE), [trace("one")]
    bad[0].problem = Problem("one", user_messages("?"), answer=object())
    writer.prepare(0, bad)
    with pytest.raises(RunError, match="plain data"):
        writer.append(0, bad)
        writer.flush()
    writer.close()
