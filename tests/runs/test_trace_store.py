"""Traces by step, problem and number."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from fake_runs import write_run
from ponder.errors import RunError
from ponder.runs import Run, read_traces
from ponder.runs.block_file import BlockReader, StoredBlock
from ponder.runs.job_json import decode
from ponder.runs.records import RecordWriter, without_checksum
from ponder.runs.run_dir import read_job
from ponder.runs.trace_store import (
    JSONL_FILE,
    TRACES_FILE,
    count_records,
    has_solved_trace,
    has_traces,
    index_traces,
    read_indexed,
    read_record,
    repair_store,
    repair_traces,
    traces_fingerprint,
)
from ponder.trace_json import trace_to_json


def blocks(path: Path) -> list[StoredBlock]:
    with BlockReader(path) as reader:
        return [block for block, _ in reader.scan()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", [["a", "b"], ["c"], ["d"], ["e"]], steps=[0, 0, 1, 2])


def test_index_agrees_with_read_traces(run: Path) -> None:
    entries = index_traces(run)
    assert [(e.number, e.step) for e in entries] == [(1, 0), (2, 0), (3, 1), (4, 2)]
    full = [(step, trace_to_json(trace)) for step, trace in read_traces(run)]
    assert [(e.step, trace_to_json(trace)) for e, trace in read_indexed(run, entries)] == full
    assert [e.problem_id for e in entries] == [trace["problem"]["id"] for _, trace in full]


def test_record_is_the_trace_with_lengths_for_arrays(run: Path) -> None:
    expected = [trace_to_json(trace, lambda name, array: len(array)) for _, trace in read_traces(run)]
    assert [read_record(run, entry) for entry in index_traces(run)] == expected
    lines = as_lines(run)
    for entry, (step, trace) in zip(index_traces(run), lines, strict=True):
        assert {k: v for k, v in read_record(run, entry).items() if k in trace} == trace and entry.step == step


def test_damaged_record_is_refused(run: Path) -> None:
    path = run / TRACES_FILE
    content = bytearray(path.read_bytes())
    content[blocks(path)[1].body_offset] ^= 1
    path.write_bytes(content)
    first, second, *_ = index_traces(run)
    assert read_record(run, first)["steps"][1]["text"] == "a"
    with pytest.raises(RunError, match="block 2 is damaged"):
        read_record(run, second)


def test_index_drops_what_a_resumption_replaced(run: Path) -> None:
    with Run(run, decode(read_job(run), trust=True)) as writer:
        writer.mark_resumed(1)
    assert [e.step for e in index_traces(run)] == [0, 0]
    assert len(list(read_traces(run))) == 2


def test_index_ignores_a_torn_last_block(run: Path) -> None:
    path = run / TRACES_FILE
    path.write_bytes(path.read_bytes()[:-9])
    assert len(index_traces(run)) == 3 and count_records(run) == 3


def test_only_a_damaged_trace_that_is_read_raises(run: Path) -> None:
    path = run / TRACES_FILE
    content = bytearray(path.read_bytes())
    second = blocks(path)[1]
    content[second.body_offset] ^= 1
    path.write_bytes(content)
    entries = index_traces(run)
    assert [t.steps[1].text for _, t in read_indexed(run, entries[2:])] == ["d", "e"]
    with pytest.raises(RunError, match="block 2 is damaged"):
        list(read_indexed(run, entries))


def test_folder_without_traces_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        index_traces(tmp_path)
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(RunError, match="no traces yet"):
        index_traces(tmp_path)


# Runs of earlier versions


def as_lines(run: Path) -> list[Any]:
    """Rewrite a run as an earlier version would have written it."""
    before = contents(run)
    writer = RecordWriter(run / JSONL_FILE)
    for step, trace in read_traces(run):
        writer.append({"step": step, **trace_to_json(trace)})
    writer.close()
    (run / TRACES_FILE).unlink()
    return before


def contents(run: Path) -> list[Any]:
    return [(step, trace_to_json(trace)) for step, trace in read_traces(run)]


def test_run_with_json_lines_alone_is_read(run: Path) -> None:
    before = as_lines(run)
    assert contents(run) == before and has_traces(run) and count_records(run) == 4 and has_solved_trace(run)
    entries = index_traces(run)
    assert [(e.step, trace_to_json(trace)) for e, trace in read_indexed(run, entries)] == before


def test_run_that_an_earlier_version_began_goes_on_in_blocks(run: Path) -> None:
    before = as_lines(run)
    old = (run / JSONL_FILE).read_bytes()
    with Run(run, decode(read_job(run), trust=True)) as writer:
        writer.write_metrics(0, {})
        assert writer.verify_records(1, {"traces": 2}) == ""
        writer.mark_resumed(1)
        assert contents(run) == before[:2], "the mark takes back lines, too"
        writer.write_traces(1, [trace for _, trace in read_traces(run)])
        assert writer.record_counts(2) == {"metrics": 1, "traces": 4}
    assert (run / JSONL_FILE).read_bytes() == old
    again = [*before[:2], (1, before[0][1]), (1, before[1][1])]
    assert contents(run) == again and [e.number for e in index_traces(run)] == [1, 2, 3, 4]
    assert [(e.step, trace_to_json(t)) for e, t in read_indexed(run, index_traces(run)[::-1])] == again[::-1]
    assert repair_traces(run, 2, 4) == (4, "")


def test_fingerprint_depends_on_valid_traces_alone(run: Path) -> None:
    in_blocks = traces_fingerprint(run)
    with Run(run, decode(read_job(run), trust=True)) as writer:
        writer.mark_resumed(3)
    assert traces_fingerprint(run) == in_blocks
    as_lines(run)
    lines = hashlib.blake2b(digest_size=12)
    for line in (run / JSONL_FILE).read_bytes().splitlines(keepends=True):
        lines.update(without_checksum(line))
    assert traces_fingerprint(run) == lines.hexdigest(), "as earlier versions computed it"
    with Run(run, decode(read_job(run), trust=True)) as writer:
        writer.mark_resumed(3)
    assert traces_fingerprint(run) == lines.hexdigest()
    with Run(run, decode(read_job(run), trust=True)) as writer:
        writer.mark_resumed(2)
    assert traces_fingerprint(run) != lines.hexdigest()


# What a checkpoint counts on


def test_repair_cuts_off_damage_after_the_checkpoint(run: Path) -> None:
    path = run / TRACES_FILE
    content = path.read_bytes()
    third = blocks(path)[2]
    path.write_bytes(content[: third.body_offset] + b"!" + content[third.body_offset + 1 :])
    with pytest.raises(RunError, match=r"block 3 is damaged \(its checksum differs\)"):
        repair_traces(run, 2, 3)
    count, cut = repair_traces(run, 1, 2)
    assert count == 2 and "traces.bin was damaged from block 3 on" in cut
    assert path.read_bytes() == content[: third.offset] and len(contents(run)) == 2


def test_repair_reports_missing_traces_until_they_are_given_up(run: Path) -> None:
    path = run / TRACES_FILE
    path.write_bytes(path.read_bytes()[: blocks(path)[2].offset])
    with pytest.raises(RunError, match=r'lacks 1 traces of the steps before 2.*\{"lost": 0\}'):
        repair_traces(run, 2, 3)
    with pytest.raises(RunError, match="holds 1 traces too many of the steps before 2"):
        repair_traces(run, 2, 1)
    (run / JSONL_FILE).write_text('{"lost": 0}\n')
    assert repair_traces(run, 2, 3) == (2, "") and len(contents(run)) == 2


def test_repair_store_keeps_what_is_whole(run: Path) -> None:
    path, before = run / TRACES_FILE, contents(run)
    content = bytearray(path.read_bytes())
    content[blocks(path)[1].body_offset] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"ponder traces {run} --repair"):
        contents(run)
    assert repair_store(run) == ["block 2: its checksum differs"]
    assert contents(run) == [before[0], *before[2:]] and repair_store(run) == []
    assert repair_traces(run, 3, 4) == (3, ""), "the mark says that one is lost"
    with Run(run, decode(read_job(run), trust=True)) as writer:
        writer.write_traces(3, [trace for _, trace in read_traces(run)][:1])
    assert len(contents(run)) == 4
