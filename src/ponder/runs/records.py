"""The records of a run: one JSON object per line, each with a step, only appended, readable at any time.

A line ends with the number of its record in the file and a CRC-32 of everything before it:

    {"step":3,"loss":0.5,"record":4,"crc":2774413512}

So readers notice and name changed digits, and lines that are missing, doubled or in another order. Lines of earlier
versions have neither and stay readable. A person who cannot restore a line writes {"lost": 4} in its place: the records
up to number 4 are known to be lost. Only an unfinished last line, which a crash leaves, is ignored; the next writer
removes it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from ponder.errors import RunError
from ponder.runs.append_file import AppendFile
from ponder.runs.resumptions import ValidRecords

_CHUNK_BYTES = 1 << 16
_MAX_NUMBER_DIGITS = 18  # of a record's number: int() refuses text of thousands of digits
_CHECKSUM_PATTERN = re.compile(rb',"record":([0-9]{1,%d}),"crc":([0-9]{1,10})\}' % _MAX_NUMBER_DIGITS)
_CRC = b',"crc":'


class DamagedRecord(RunError):
    """A line that differs from what was written."""

    def __init__(self, path: Path, line: int, why: str, cure: str, offset: int) -> None:
        super().__init__(f"{path}, line {line} is damaged ({why}): {cure}")
        self.line, self.offset = line, offset


@dataclass(frozen=True, slots=True)
class _Line:
    line: int
    offset: int
    record: dict[str, Any]
    number: int  # of the record


class RecordWriter:
    """Appends records to a file, each line completely or not at all. It waits while the disk is full."""

    def __init__(self, path: Path) -> None:
        is_new_file = not path.exists()
        with open(path, "a+b") as file:
            last, size = _last_line(file), file.tell()
            if last and _parse_record(last) is not None:
                file.write(b"\n")
            elif last and not _has_trailing_bytes(last):
                file.truncate(size - len(last))
        self._next = _next_number(path)
        self._file = AppendFile(path, is_new_file)

    def append(self, record: Mapping[str, Any]) -> None:
        line = with_checksum(json.dumps(record, separators=(",", ":"), allow_nan=False).encode(), self._next)
        self._file.append(line)
        self._next += 1

    def sync(self) -> None:
        """Write the file through to the disk, and the name of a new file too."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def with_checksum(body: bytes, number: int) -> bytes:
    """The line of a record: its JSON with its number and checksum."""
    head = body[:-1] + b',"record":%d' % number
    return head + b"%b%d}\n" % (_CRC, crc32(head))


def without_checksum(line: bytes) -> bytes:
    """A line without its number and checksum: what an earlier version would have written."""
    text = line.removesuffix(b"\n")
    match = _match_checksum(text)
    return line if match is None else text[: match.start()] + b"}\n"


def has_valid_checksum(line: bytes) -> bool:
    """Whether a line is as it was written. Lines of earlier versions have no checksum and pass."""
    text = line.removesuffix(b"\n")
    match = _match_checksum(text)
    return match is None or crc32(text[: match.end(1)]) == int(match[2])


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records that are valid after all resumptions, each with its line number."""
    if not path.exists():
        return
    valid = ValidRecords[tuple[int, int]]()  # line, byte offset
    with open(path, "rb") as file:
        for one in _scan_lines(path, file):
            if "resumed" in one.record:
                valid.take_back(one.record["resumed"])
            elif "step" in one.record:
                valid.add(one.record["step"], (one.line, one.offset))
        for _, (number, at) in valid:
            file.seek(at)
            yield number, json.loads(without_checksum(file.readline()))


def scan_places(path: Path) -> Iterator[tuple[bool, int | None, int, int]]:
    """Of every record and marker: whether it marks a resumption, its step (None: a marker of lost records), its line
    and its offset. Raises DamagedRecord at the first line that is damaged."""
    if path.exists():
        with open(path, "rb") as file:
            for one in _scan_lines(path, file):
                resumed = "resumed" in one.record
                yield resumed, one.record.get("resumed" if resumed else "step"), one.line, one.offset


def raw_records(path: Path) -> Iterator[dict[str, Any]]:
    """Every record and every marker, one by one, so that the caller may stop early."""
    if path.exists():
        with open(path, "rb") as file:
            yield from (one.record for one in _scan_lines(path, file))


def repair_records(path: Path, step: int, expected_count: int | None, one_per_step: bool = False) -> tuple[int, str]:
    """Check the records of steps before `step`, on which a checkpoint relies; cut off damage in later ones.

    `expected_count`: how many there must be; None: unknown. `one_per_step`: exactly one of every step.
    Returns how many there are, and what was cut off and why, or an empty text.
    """
    if one_per_step:
        expected_count = step
    valid, lost, damage, following = _records_before(path, step)
    steps = [s for s, _ in valid]
    whole = lost or (
        (expected_count is None or len(valid) == expected_count) and (not one_per_step or steps == list(range(step)))
    )
    if damage is not None:
        if not whole:
            raise damage
        os.truncate(path, damage.offset)
        return len(valid), f"{path.name} was damaged from line {damage.line} on, which is after what is kept"
    if whole:
        return len(valid), ""
    if one_per_step and (gap := next((i for i, s in enumerate(steps) if s != i), None)) is not None:
        line = valid[gap][1]
        why = f"it is of step {steps[gap]}, and step {gap} should be here"
        raise DamagedRecord(path, line, why, _recovery_hint(line - 1), 0)
    missing = (expected_count or 0) - len(valid)
    if missing < 0:
        raise RunError(f"{path} holds {-missing} records too many of the steps before {step}: restore it from a copy")
    after = f"after line {valid[-1][1]}" if valid else "from the first on"
    cure = _recovery_hint(following - 1 + missing, "there")
    raise RunError(f"{path} lacks {missing} records of the steps before {step}, {after}: {cure}")


def _recovery_hint(number: int, where: str = "above it") -> str:
    return f'restore what is missing, or write a line {{"lost": {number}}} {where} to go on without'


def _records_before(path: Path, step: int) -> tuple[list[tuple[int, int]], bool, DamagedRecord | None, int]:
    """(step, line) of each record of an earlier step, whether some are marked as lost, the first damage, the next
    number."""
    valid = ValidRecords[int]()  # lines
    lost, following = False, 1
    if not path.exists():
        return [], lost, None, following
    with open(path, "rb") as file:
        try:
            for one in _scan_lines(path, file):
                following = one.number + 1
                lost = lost or "lost" in one.record
                if "resumed" in one.record:
                    valid.take_back(one.record["resumed"])
                elif "step" in one.record and one.record["step"] < step:
                    valid.add(one.record["step"], one.line)
        except DamagedRecord as damage:
            return list(valid), lost, damage, following
    return list(valid), lost, None, following


def _scan_lines(path: Path, file: IO[bytes]) -> Iterator[_Line]:
    """Every line that is a record, in order. Raises at the first one that is damaged."""
    offset, expected, has_checksums = 0, 1, False
    for line, raw in enumerate(file, 1):
        text, at = raw.removesuffix(b"\n"), offset
        offset += len(raw)
        record = _parse_record(text)
        if record is None:
            if text.strip() and (raw.endswith(b"\n") or _has_trailing_bytes(text)):
                raise _damaged_record(path, line, _describe_fault(text), expected if has_checksums else None, at)
            continue
        match = _match_checksum(text)
        if match is not None:
            has_checksums, number = True, int(match[1])
            if crc32(text[: match.end(1)]) != int(match[2]):
                raise _damaged_record(path, line, "its checksum differs", expected, at)
            if number < expected:
                raise DamagedRecord(path, line, f"it is record {number} again", "remove that line", at)
            if number > expected:
                missing = (
                    f"record {expected} is" if number == expected + 1 else f"records {expected} to {number - 1} are"
                )
                raise DamagedRecord(path, line, f"{missing} missing before it", _recovery_hint(number - 1), at)
        elif "lost" in record:
            number = max(record["lost"], expected - 1)
        elif has_checksums or {"record", "crc"} & record.keys():
            raise _damaged_record(path, line, "it has lost its checksum", expected, at)
        else:
            number = expected
        expected = number + 1
        if match is not None:
            record = {k: v for k, v in record.items() if k not in ("record", "crc")}
        yield _Line(line, at, record, number)


def last_record_number(path: Path) -> int:
    """How many records and markers a file holds, by the number of its last whole line: only its end is read."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        end -= len(_last_line(file, end))
        match = _match_checksum(_last_line(file, end - 1)) if end else None
    return int(match[1]) if match is not None else 0


def _next_number(path: Path) -> int:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return 1
        last = _last_line(file, size - 1)
        if (match := _match_checksum(last)) is not None and crc32(last[: match.end(1)]) == int(match[2]):
            return int(match[1]) + 1
        file.seek(0)
        following = 1
        for one in _scan_lines(path, file):
            following = one.number + 1
        return following


def _last_line(file: IO[bytes], end: int | None = None) -> bytes:
    """The text after the last line break before `end`. Leaves the file at its end."""
    size = at = file.seek(0, os.SEEK_END) if end is None else end
    tail, chunk = b"", _CHUNK_BYTES
    while at and b"\n" not in tail:
        at, chunk = max(0, at - chunk), 2 * chunk  # a line may have many megabytes
        file.seek(at)
        tail = file.read(size - at)
    file.seek(0, os.SEEK_END)
    return tail.rpartition(b"\n")[2]


def _match_checksum(text: bytes) -> re.Match[bytes] | None:
    """The number and checksum at the end of a line."""
    at = text.rfind(b',"record":')
    return _CHECKSUM_PATTERN.fullmatch(text, at) if at >= 0 else None


def _has_trailing_bytes(text: bytes) -> bool:
    """Whether a complete record is followed by something: not by a crash, its end was changed."""
    return any(crc32(text[: match.end(1)]) == int(match[2]) for match in _CHECKSUM_PATTERN.finditer(text))


def _parse_record(text: bytes) -> dict[str, Any] | None:
    """The record; None if the line is no record: cut short, still being written, or damaged."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    marks = [record[name] for name in ("lost", "resumed", "step") if name in record]
    if not marks or any(type(mark) is not int for mark in marks):
        return None
    return record if record.get("lost", 0) < 10**_MAX_NUMBER_DIGITS - 1 else None


def _describe_fault(text: bytes) -> str:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return "it is not JSON"
    return "it has no step" if isinstance(record, dict) and "step" not in record else "it is no record"


def _damaged_record(path: Path, line: int, why: str, number: int | None, offset: int) -> DamagedRecord:
    if number is None:
        return DamagedRecord(path, line, why, "restore that line, or remove it to go on without it", offset)
    cure = f'restore that line, or write {{"lost": {number}}} in its place to go on without it'
    return DamagedRecord(path, line, why, cure, offset)


def damaged_record(path: Path, number: int, why: str) -> RunError:
    return _damaged_record(path, number, why, None, 0)
