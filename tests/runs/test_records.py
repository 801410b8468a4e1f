"""Lines of a run: what was written whole is read, a torn end is forgiven, and damage is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.errors import RunError
from ponder.runs import read_metrics, read_traces
from ponder.runs.records import RecordWriter, raw_records, read_records, repair_records
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Step, Trace, ids, user_messages


def add(path: Path, *rows: dict[str, object]) -> None:
    appender = RecordWriter(path)
    for row in rows:
        appender.append(row)
    appender.close()


def held(path: Path) -> list[dict[str, object]]:
    return [record for _, record in read_records(path)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"step": 1, "x"', "it is not JSON"),
        ("\x00\x00\x00", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"x": 1}', "it has no step"),
        ('{"step": "1"}', "it is no record"),
        ('{"step": true}', "it is no record"),
        ('{"resumed": null}', "it has no step"),
        ("[1]", "it is no record"),
        ("null", "it is no record"),
    ],
)
def test_damaged_line_is_named(line: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for place in range(3):
        lines = ['{"step":0}', '{"step":2}']
        lines.insert(place, line)
        path.write_text("\n".join(lines) + "\n")
        for read in (read_records, raw_records):
            with pytest.raises(RunError) as error:
                list(read(path))
            assert str(error.value).startswith(f"{path}, line {place + 1} is damaged ({why}): ")
    path.write_text('{"step":0}\n\n{"step":1}\n' + line[:50])  # nothing is lost with an empty line, or a torn last one
    assert held(path) == [{"step": 0}, {"step": 1}]


def test_invalid_traces_and_metrics_are_refused(tmp_path: Path) -> None:
    whole = {"step": 0, **trace_to_json(Trace(Problem("a", user_messages("?")), [Step(None, "?", ids([1]))]))}
    for spoilt, why in (
        ({"step": 1}, "it has no 'problem'"),
        ({**whole, "steps": [{"parent": 7}]}, "damaged"),
        ({**whole, "steps": None}, "it is no trace"),
        ({**whole, "cost": {"gold": 1}}, "it is no trace"),
        ({**whole, "problem": "a"}, "it is no trace"),
    ):
        (tmp_path / "traces.jsonl").unlink(missing_ok=True)
        add(tmp_path / "traces.jsonl", whole, spoilt)
        with pytest.raises(RunError, match=r"traces\.jsonl, line 2 is damaged") as error:
            list(read_traces(tmp_path))
        assert why in str(error.value)
    for value in ("much", [1], {"a": 1}):
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
        add(tmp_path / "metrics.jsonl", {"step": 0, "loss": None}, {"step": 1, "loss": value})
        with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged \('loss' is "):
            read_metrics(tmp_path)
    add(tmp_path / "metrics.jsonl", {"step": 2, "findings": "x"})
    with pytest.raises(RunError, match="line 2"):
        read_metrics(tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=5), st.data())
def test_truncated_file_keeps_complete_records(texts: list[str], data: st.DataObject) -> None:
    """A crash can stop the writing after any byte. What comes next is read whole, and no line is ever damaged."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        rows = [{"step": i, "text": text} for i, text in enumerate(texts)]
        add(path, *rows)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
        kept = rows[: sum(end - 1 <= cut for end in ends)]  # the end of a line may be missing
        assert held(path) == kept
        add(path, {"step": 9})
        assert held(path) == [*kept, {"step": 9}] and path.read_bytes().endswith(b"\n")
        assert len(path.read_bytes().splitlines()) >= 1


def test_writer_removes_a_long_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    add(path, {"step": 0}, {"step": 1, "text": "y" * 200_000})
    path.write_bytes(path.read_bytes()[:-7])
    add(path, {"step": 2})
    assert held(path) == [{"step": 0}, {"step": 2}] and len(path.read_bytes()) < 100


# what no crash does


ROWS = [{"step": i, "loss": 0.5 + i} for i in range(3)] + [{"resumed": 2}, {"step": 2, "loss": 9.0}]


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_line_holds_number_and_checksum(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *ROWS)
    rows = [json.loads(line) for line in lines(path)]
    assert [row["record"] for row in rows] == [1, 2, 3, 4, 5] and all(type(row["crc"]) is int for row in rows)
    assert held(path) == [ROWS[0], ROWS[1], ROWS[4]], "a reader sees what was given"


@pytest.mark.parametrize("mask", [1, 2, 4, 8, 16, 32, 64, 128])
def test_every_flipped_bit_is_noticed_or_harmless(mask: int, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *ROWS)
    content, right = path.read_bytes(), held(path)
    for at in range(len(content)):
        spoilt = bytearray(content)
        spoilt[at] ^= mask
        path.write_bytes(spoilt)
        try:
            result = held(path)
        except RunError as error:
            line = content.count(b"\n", 0, at) + 1
            assert f"{path}, line {line} is damaged" in str(error) or f"line {line + 1} is" in str(error), at
        else:
            assert result == right, (at, mask, bytes(spoilt))


def test_changed_digit_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"loss":1.5', b'"loss":1.4'))
    with pytest.raises(RunError, match=r"line 2 is damaged \(its checksum differs\): restore that line, or write") as e:
        held(path)
    marker = re.search(r'{"lost": \d+}', str(e.value))
    assert marker is not None
    path.write_text(path.read_text().replace(lines(path)[1].decode(), marker[0] + "\n"))
    assert held(path) == [ROWS[0], ROWS[4]], "what was said to do is enough"
    add(path, {"step": 3})
    assert held(path) == [ROWS[0], ROWS[4], {"step": 3}]
    spaced = [json.dumps(json.loads(line)).encode() + b"\n" for line in whole.splitlines()]
    path.write_bytes(b"".join(spaced))
    with pytest.raises(RunError, match=r"line 1 is damaged \(it has lost its checksum"):
        held(path)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2, 3, 4], r"line 2 is damaged \(record 2 is missing before it\)"),
        ([1, 2, 3, 4], r"line 1 is damaged \(record 1 is missing before it\)"),
        ([3, 4], r"line 1 is damaged \(records 1 to 3 are missing before it\)"),
        ([0, 1, 1, 2, 3, 4], r"line 3 is damaged \(it is record 2 again\): remove that line"),
        ([0, 1, 2, 3, 4, 0], r"line 6 is damaged \(it is record 1 again\)"),
        ([0, 2, 1, 3, 4], r"line 2 is damaged \(record 2 is missing before it\)"),
    ],
)
def test_missing_doubled_or_moved_lines_are_reported(order: list[int], message: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *ROWS)
    path.write_bytes(b"".join(lines(path)[i] for i in order))
    for read in (read_records, raw_records):
        with pytest.raises(RunError, match=message):
            list(read(path))


def test_zeroed_block_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    add(path, *({"step": i, "text": "y" * 50} for i in range(20)))
    content = path.read_bytes()
    for at in range(0, len(content) - 64, 37):
        path.write_bytes(content[:at] + bytes(64) + content[at + 64 :])
        with pytest.raises(RunError, match=r"is damaged"):
            held(path)
        path.write_bytes(content[:at] + content[at + 64 :])
        with pytest.raises(RunError, match=r"is damaged"):
            held(path)


def test_lines_without_checksum_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0,"loss":1.5}\n{"step":1,"loss":1.25}\n')
    add(path, {"step": 2})
    assert held(path) == [{"step": 0, "loss": 1.5}, {"step": 1, "loss": 1.25}, {"step": 2}]
    path.write_bytes(b"".join(lines(path)[1:]))
    with pytest.raises(RunError, match="record 2 is missing before it"):
        held(path)


# what a checkpoint counts on


def test_repair_cuts_off_damage_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *({"step": i} for i in range(6)))
    content = path.read_bytes()
    spoilt = lines(path)
    spoilt[4] = bytes(len(spoilt[4]) - 1) + b"\n"  # a power cut: zeros, and later lines are there
    path.write_bytes(b"".join(spoilt))
    count, text = repair_records(path, 4, 4, one_per_step=True)
    assert count == 4 and "damaged from line 5 on" in text and path.read_bytes() == b"".join(lines(path)[:4])
    add(path, {"resumed": 4}, {"step": 4})
    assert [row["step"] for row in held(path)] == [0, 1, 2, 3, 4]
    path.write_bytes(b"".join(spoilt))
    with pytest.raises(RunError, match=r"line 5 is damaged \(it is not JSON\)"):
        repair_records(path, 5, 5, one_per_step=True)
    path.write_bytes(content)
    assert repair_records(path, 4, 4, one_per_step=True) == (4, "") and path.read_bytes() == content


def test_repair_reports_missing_last_records(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    add(path, *({"step": i // 2} for i in range(8)))
    path.write_bytes(b"".join(lines(path)[:5]))
    with pytest.raises(RunError, match=r'lacks 3 records of the steps before 4, after line 5: .*{"lost": 8}'):
        repair_records(path, 4, 8)
    assert repair_records(path, 2, 4) == (4, "")
    with path.open("a") as file:
        file.write('{"lost": 8}\n')
    assert repair_records(path, 4, 8) == (5, "")
    add(path, {"step": 4})
    assert len(held(path)) == 6
    path.unlink()
    with pytest.raises(RunError, match="lacks 8 records of the steps before 4, from the first on"):
        repair_records(path, 4, 8)
    assert repair_records(path, 0, None) == (0, "")


def test_repair_reports_a_missing_step_without_checksums(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": i}) + "\n" for i in (0, 1, 3, 4)))
    with pytest.raises(RunError, match=r"line 3 is damaged .it is of step 3, and step 2 should be here"):
        repair_records(path, 5, None, one_per_step=True)
    path.write_text("".join(json.dumps({"step": i}) + "\n" for i in (0, 1, 1, 2)))
    with pytest.raises(RunError, match=r"line 3 is damaged .it is of step 1, and step 2 should be here"):
        repair_records(path, 3, None, one_per_step=True)
