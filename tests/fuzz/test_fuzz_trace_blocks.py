"""Trace blocks: every bit comes back, and no file makes a reader or a writer raise anything but RunError."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fuzz.fuzzing import corpus, fuzz
from ponder.errors import RunError
from ponder.runs import block_file
from ponder.runs.block_file import BlockReader, encode_block
from ponder.runs.trace_blocks import pack_traces
from ponder.runs.trace_store import (
    TRACES_FILE,
    count_records,
    has_solved_trace,
    index_traces,
    read_indexed,
    read_traces,
    repair_store,
    repair_traces,
    traces_fingerprint,
)
from ponder.runs.trace_writer import TraceWriter
from ponder.types import Problem, Step, Trace, ids, user_messages
from trace_samples import bits, random_traces

CALLS = st.lists(st.lists(random_traces(), max_size=3), min_size=1, max_size=3)


def write(folder: Path, *calls: list[Trace], first_step: int = 0) -> None:
    writer = TraceWriter(folder / TRACES_FILE)
    for step, traces in enumerate(calls, first_step):
        writer.append(step, traces)
    assert writer.close() == ""


def read(folder: Path) -> list[tuple[int, Any]]:
    return [(step, bits(trace)) for step, trace in read_traces(folder)]


@fuzz(CALLS)
def test_every_bit_comes_back(calls: list[list[Trace]]) -> None:
    expected = [(step, bits(trace)) for step, traces in enumerate(calls) for trace in traces]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").touch()  # a run directory, even if it has no traces
        write(folder, *calls[:1])
        write(folder, *calls[1:], first_step=1)
        assert read(folder) == expected
        if expected:
            entries = index_traces(folder)
            one_by_one = [(entry.step, bits(trace)) for entry, trace in read_indexed(folder, entries[::-1])]
            assert one_by_one == expected[::-1]
            assert count_records(folder) == len(entries) == len(expected)


def write_on(folder: Path) -> None:
    """Who can write on can read what was there, and one trace more."""
    writer = TraceWriter(folder / TRACES_FILE)
    writer.append(9, [Trace(Problem("new", user_messages("?")), [Step(None, "?", ids([1]))])])
    if error := writer.close():
        raise RunError(error)


USES: tuple[Callable[[Path], Any], ...] = (
    read,
    lambda folder: list(read_indexed(folder, index_traces(folder))),
    count_records,
    has_solved_trace,
    traces_fingerprint,
    write_on,
    lambda folder: repair_traces(folder, 2, None),
    lambda folder: repair_traces(folder, 2, 2),
    repair_store,
)


def use(content: bytes) -> None:
    """Everybody who opens such a file reads it or raises one clear error; repaired, it is read and written on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in USES:
            (folder / TRACES_FILE).write_bytes(content)
            try:
                each(folder)
            except RunError as error:
                assert "\n" not in str(error).replace(name, "") and len(str(error)) < 2000, error
        (folder / TRACES_FILE).write_bytes(content)
        repair_store(folder)
        with BlockReader(folder / TRACES_FILE) as reader:
            blocks = [block.number for block, _ in reader.scan(check_bodies=True)]
        write_on(folder)
        with BlockReader(folder / TRACES_FILE) as reader:
            again = [block.number for block, _ in reader.scan(check_bodies=True)]
            assert again == [*blocks, again[-1]] and reader.size >= len(again)


@fuzz(CALLS, st.data())
def test_changed_bytes_are_named_or_cut_off_the_end(calls: list[list[Trace]], data: st.DataObject) -> None:
    """Some bytes are replaced, added or removed. What is read is what was written, or its beginning: a cut at the end
    of the file looks like a crash."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, *calls)
        path = folder / TRACES_FILE
        content, whole = (path.read_bytes(), read(folder)) if path.exists() else (b"", [])
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + data.draw(st.sampled_from([0, 4, 500])))))
        changed = content[:start] + data.draw(st.binary(max_size=4)) + content[end:]
        path.write_bytes(changed)
        try:
            after = read(folder)
        except RunError as error:
            assert "damaged" in str(error)
        else:
            is_cut_or_added_to = end == len(content) or start == len(content)
            assert after == whole[: len(after)] and (after == whole or is_cut_or_added_to)
    use(changed)


@fuzz(st.lists(st.binary(max_size=200) | st.sampled_from([b"PTRACE\x01\n", b"\0" * 90]), max_size=4))
def test_any_file_is_read_or_refused(parts: list[bytes]) -> None:
    use(b"".join(parts))


@pytest.mark.parametrize("content", [bytes.fromhex(entry) for entry in corpus("trace_blocks")])
def test_stored_files_are_read_or_refused(content: bytes) -> None:
    use(content)


SIZES = st.integers(-1, 9) | st.sampled_from([2**31, 2**40, 2**70, True, None, "x", 1.5])
JSON = st.recursive(SIZES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@fuzz(random_traces(), st.data())
def test_forged_blocks_with_right_checksums_are_refused(trace: Trace, data: st.DataObject) -> None:
    """A stranger can compute a checksum: sizes and structure are checked whatever it says."""
    (packed,) = pack_traces(0, [trace])
    directory, body = packed.encode()
    forged = json.loads(directory)
    where = data.draw(st.sampled_from(["traces", "json", "columns", "token_ids", "body", "header"]))
    if where in ("traces", "json", "columns"):
        forged[where] = data.draw(JSON)
    elif where == "token_ids":
        forged["columns"]["token_ids"] = data.draw(JSON | st.tuples(SIZES, st.lists(SIZES, max_size=3)))
    elif where == "body":
        at = data.draw(st.integers(0, len(body)))
        body = body[:at] + data.draw(st.binary(min_size=1, max_size=4)) + body[at + 1 :]
    count = data.draw(st.sampled_from([0, 1, 2**32 - 1])) if where == "header" else 1
    use(encode_block(1, 0, 0, block_file.ITEMS, count, json.dumps(forged).encode(), body))
