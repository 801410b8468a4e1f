"""The index of traces: extended by what was appended, equal to one made anew, small."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest

from ponder.errors import RunError
from ponder.runs.block_file import ITEMS, BlockWriter
from ponder.runs.records import RecordWriter
from ponder.runs.trace_index import JSONL_FILE, TRACES_FILE, TraceEntry, TraceIndex
from ponder.runs.trace_store import index_traces, read_indexed, read_traces, repair_store
from ponder.runs.trace_writer import TraceWriter
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Step, Trace, ids, user_messages


def trace(name: str, tokens: int = 2) -> Trace:
    problem = Problem(name, user_messages("?"))
    return Trace(problem, [Step(None, "?", ids([1])), Step(0, "x", ids(range(tokens)))], failed="" if tokens else "no")


def plain(index: TraceIndex) -> list[TraceEntry]:
    return list(index)


def test_entries_say_what_the_directory_says(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / TRACES_FILE)
    writer.append(3, [trace("a", 5), trace("é\ud800", 0)])
    writer.append(4, [trace("b")])
    assert writer.close() == ""
    index = index_traces(tmp_path)
    rows = [(e.number, e.step, e.problem_id, e.position, e.num_steps, e.num_tokens, e.failed) for e in index]
    assert rows == [(1, 3, "a", 0, 2, 6, False), (2, 3, "é\ud800", 1, 2, 1, True), (3, 4, "b", 0, 2, 3, False)]
    assert index[-1] == index[2] == plain(index)[2] and index[1:] == plain(index)[1:]
    with pytest.raises(IndexError, match="there are 3"):
        index[3]


@pytest.mark.parametrize("seed", range(6))
def test_extended_index_equals_one_made_anew(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = RecordWriter(tmp_path / JSONL_FILE)
    for step in range(draw.randrange(3)):
        lines.append({"step": step, **trace_to_json(trace(f"line {step}"))})
    lines.close()
    index = TraceIndex(tmp_path)
    writer, step = TraceWriter(tmp_path / TRACES_FILE), 0
    for _ in range(40):
        before = plain(index)
        for _ in range(draw.randrange(3)):
            if draw.random() < 0.25:
                step = draw.randrange(step + 1)
                writer.mark_resumed(step)
            else:
                writer.append(step, [trace(f"{step}/{i}") for i in range(draw.randrange(1, 4))])
                step += draw.randrange(2)
        writer.flush()
        changed = index.extend()
        after = plain(index)
        assert after == plain(TraceIndex(tmp_path))
        assert [(e.step, e.problem_id) for e in after] == [(s, t.problem.id) for s, t in read_traces(tmp_path)]
        assert changed == (after[: len(before)] != before)
        assert [t.problem.id for _, t in read_indexed(tmp_path, index)] == [e.problem_id for e in after]
    writer.close()


def test_extension_reads_only_what_was_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ponder.runs import trace_index

    writer = TraceWriter(tmp_path / TRACES_FILE)
    for step in range(50):
        writer.append(step, [trace(str(step))])
    writer.flush()
    index = TraceIndex(tmp_path)
    parsed: list[bytes] = []
    parse = trace_index.parse_rows
    monkeypatch.setattr(trace_index, "parse_rows", lambda d, n: (parsed.append(d), parse(d, n))[1])
    assert not index.extend() and parsed == []
    writer.append(50, [trace("new")])
    writer.close()
    assert not index.extend() and len(parsed) == 1 and index[-1].problem_id == "new"


def test_replaced_and_shortened_files_are_read_anew(tmp_path: Path) -> None:
    path = tmp_path / TRACES_FILE
    writer = TraceWriter(path)
    for step in range(4):
        writer.append(step, [trace(str(step))])
    writer.close()
    index = TraceIndex(tmp_path)
    damaged, third = bytearray(path.read_bytes()), index[2].offset
    os.truncate(path, third)
    assert index.extend() and [e.step for e in index] == [0, 1]
    damaged[third + 100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(RunError, match="block 3 is damaged"):
        index.extend()
    assert [e.step for e in index] == [0, 1]
    repair_store(tmp_path)
    assert index.extend() and [e.step for e in index] == [0, 1, 3]
    path.unlink()
    assert index.extend() and len(index) == 0


def test_torn_block_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / TRACES_FILE
    writer = TraceWriter(path)
    writer.append(0, [trace("a")])
    writer.append(1, [trace("b")])
    writer.close()
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    index = TraceIndex(tmp_path)
    assert len(index) == 1
    with path.open("ab") as file:
        file.write(content[-5:])
    assert not index.extend() and [e.problem_id for e in index] == ["a", "b"]


@pytest.mark.parametrize(
    "row", [["a", 1, 2**31, False], ["a", -1, 1, False], ["a", 1, 1], ["a", 1, 1, 0], "abcd", None]
)
def test_crafted_directory_is_refused(tmp_path: Path, row: object) -> None:
    writer = BlockWriter(tmp_path / TRACES_FILE)
    writer.append(0, ITEMS, 1, json.dumps({"traces": [row]}).encode(), b"")
    writer.close()
    with pytest.raises(RunError, match="directory"):
        TraceIndex(tmp_path)


def test_entry_takes_few_bytes(tmp_path: Path) -> None:
    writer = BlockWriter(tmp_path / TRACES_FILE)
    rows = [[f"task/train/{i:06}", 9, 2048, False] for i in range(16)]
    directory = json.dumps({"traces": rows}).encode()
    for step in range(400):
        writer.append(step, ITEMS, 16, directory, b"")
    writer.close()
    index = TraceIndex(tmp_path)
    columns = [value for value in vars(index).values() if not isinstance(value, Path | int)]
    assert len(index) == 6400 and sum(map(sys.getsizeof, columns)) < 60 * len(index)
