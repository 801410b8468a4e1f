"""The record format: what is written is read, damage is named or harmless, and no file raises anything but RunError."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fuzz.fuzzing import corpus, fuzz
from ponder.errors import RunError
from ponder.runs import read_metrics, read_traces
from ponder.runs.records import RecordWriter, raw_records, read_records, repair_records

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
NAMES = st.text().filter(lambda name: name not in ("step", "lost", "resumed", "record", "crc"))
ROWS = st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=5)
NUMBERS = st.integers(-1, 5) | st.sampled_from([2**63, 10**400]) | st.none() | st.booleans() | st.text(max_size=2)
MARKS = st.dictionaries(st.sampled_from(["step", "lost", "resumed", "record", "crc", "x"]), NUMBERS, max_size=4)
LINES = st.lists(MARKS.map(lambda mark: json.dumps(mark).encode()) | st.binary(max_size=40), max_size=6)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    appender = RecordWriter(path)
    for row in rows:
        appender.append(row)
    appender.close()


def held(path: Path) -> list[dict[str, Any]]:
    return [record for _, record in read_records(path)]


def goes_on(path: Path) -> None:
    """Who can read a file can write on, and then reads one record more."""
    before = list(raw_records(path))
    write(path, [{"step": 0}])
    assert list(raw_records(path)) == [*before, {"step": 0}]


def walked(content: bytes) -> None:
    """Everybody who opens such a file reads it or says that it is damaged."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("metrics.jsonl", "traces.jsonl"):
            Path(folder, name).write_bytes(content)
        path = Path(folder, "metrics.jsonl")
        for use in (
            held,
            lambda path: list(raw_records(path)),
            lambda path: read_metrics(path.parent),
            lambda path: list(read_traces(path.parent)),
            goes_on,
            lambda path: repair_records(path, 2, None),
            lambda path: repair_records(path, 2, 2),
            lambda path: repair_records(path, 2, None, one_per_step=True),
        ):
            path.write_bytes(content)
            try:
                use(path)
            except RunError as error:
                assert "\n" not in str(error).replace(folder, "") and len(str(error)) < 2000


@pytest.mark.parametrize("content", corpus("records"), ids=lambda text: text[:40])
def test_corpus_of_records(content: str) -> None:
    walked(content.encode("utf-8", "surrogateescape"))


@fuzz(LINES)
def test_any_records_file_is_read_or_refused(lines: list[bytes]) -> None:
    walked(b"\n".join(lines))


@fuzz(ROWS)
def test_records_round_trip(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        whole = [{"step": i, **row} for i, row in enumerate(rows)]
        write(path, whole[:1])
        write(path, whole[1:])
        assert held(path) == whole and list(raw_records(path)) == whole


@fuzz(ROWS, st.data())
def test_a_changed_record_is_detected_or_harmless(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    """One stretch of bytes is replaced by others. What is still read is what was written, or its beginning: a cut at
    the end of the file looks like a crash."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        whole = [{"step": i, **row} for i, row in enumerate(rows)]
        write(path, whole)
        content = path.read_bytes()
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 4)))
        path.write_bytes(content[:start] + data.draw(st.binary(max_size=4)) + content[end:])
        try:
            records = held(path)
        except RunError as error:
            assert "damaged" in str(error)
        else:
            assert records == whole[: len(records)] and (len(records) >= len(whole) - 1 or end == len(content))
