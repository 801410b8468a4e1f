"""Records of a run, one JSON object per line: each has a step, is only appended, and can be read at any time.

Only a last line that a crash left unfinished is ignored, and goes before the next is written. What else cannot be read
is damage, and is named.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ponder.errors import RunError

_CHUNK = 1 << 16


def open_append(path: Path) -> IO[str]:
    """Open for appending, on a line of its own: what a crash left unfinished goes, unless only its end is missing."""
    with open(path, "a+b") as file:
        last, size = _last_line(file), file.tell()
        if last and _parsed(last) is None:
            file.truncate(size - len(last))
        elif last:
            file.write(b"\n")
    return open(path, "a", encoding="utf-8")


def _last_line(file: IO[bytes]) -> bytes:
    """What stands after the last end of a line; leaves the file at its end."""
    size = at = file.seek(0, os.SEEK_END)
    tail = b""
    while at and b"\n" not in tail:
        at = max(0, at - _CHUNK)
        file.seek(at)
        tail = file.read(size - at)
    file.seek(0, os.SEEK_END)
    return tail.rpartition(b"\n")[2]


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records that still hold, each with its line's number."""
    if not path.exists():
        return
    valid: list[tuple[int, int, int]] = []  # (step, line, byte offset)
    with open(path, "rb") as file:
        for number, offset, record in _all(path, file):
            if "resumed" in record:
                valid = [one for one in valid if one[0] < record["resumed"]]
            else:
                valid.append((record["step"], number, offset))
        for _, number, at in valid:
            file.seek(at)
            yield number, json.loads(file.readline())


def as_written(path: Path) -> Iterator[dict[str, Any]]:
    """Every record and every marker, one by one: for whoever need not read to the end."""
    if path.exists():
        with open(path, "rb") as file:
            yield from (record for _, _, record in _all(path, file))


def _all(path: Path, file: IO[bytes]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """With the number and the offset of its line."""
    offset = 0
    for number, line in enumerate(file, 1):
        record = _parsed(line)
        if record is not None:
            yield number, offset, record
        elif line.endswith(b"\n") and line.strip():
            raise damaged(path, number, _ailment(line))
        offset += len(line)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A record; None where it is not one: torn by a kill, still being written, or damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    return record if type(record.get("resumed", record.get("step"))) is int else None


def _ailment(line: bytes) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "it is not JSON"
    return "it has no step" if isinstance(record, dict) and "step" not in record else "it is no record"


def damaged(path: Path, number: int, why: str) -> RunError:
    return RunError(f"{path}, line {number} is damaged ({why}): bring that line back, or remove it to go on without it")
