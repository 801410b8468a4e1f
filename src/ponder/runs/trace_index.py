"""Where each trace of a run is: an index in columns, which is extended by what was appended to the files.

A million traces take about 50 MB. Only the beginnings of lines and the directories of blocks are read; the checksum of
a trace is compared when it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from ponder.runs.block_file import ITEMS, RESUMED, BlockReader, DamagedBlock, StoredBlock
from ponder.runs.symlinks import refuse_symlinks
from ponder.runs.trace_blocks import parse_rows

TRACES_FILE = "traces.bin"
JSONL_FILE = "traces.jsonl"  # of earlier versions

_LINE_START = re.compile(rb'\{"(step|resumed)":(\d{1,18})[,}](?:"problem":\{"id":("(?:[^"\\]|\\.)*"))?')
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """Where a trace is. `number` counts the valid traces of the run, from 1 on."""

    number: int
    step: int
    problem_id: str
    offset: int  # of its line or block
    record: int  # number of the line or block
    position: int | None  # in the block; None: a line of traces.jsonl
    num_steps: int | None = None  # None: a line, which does not say it at its beginning
    num_tokens: int | None = None
    failed: bool | None = None


class TraceIndex(Sequence[TraceEntry]):
    """The traces that are valid after all resumptions, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clear()
        self.extend()

    def _clear(self) -> None:
        # A place is a line or a block.
        self._steps, self._offsets, self._records = array("q"), array("q"), array("q")
        self._first_traces, self._ends = array("I"), array("I")  # in the columns of traces; number of the last trace
        # The columns of traces, also of those that were taken back.
        self._ids, self._id_ends = bytearray(), array("q")
        self._num_steps, self._num_tokens, self._failed = array("i"), array("i"), array("b")
        self._num_lines = 0  # the first places are lines
        self._line_number = self._line_offset = self._jsonl_bytes = 0  # what was read of traces.jsonl, and its size
        self._store_id = (0, 0)  # of the file traces.bin
        self._last_block: StoredBlock | None = None  # of what was read of traces.bin
        self._marks: list[tuple[int, int]] = []  # places before a resumption, and its step: not yet applied

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> TraceEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[TraceEntry]: ...
    def __getitem__(self, index: int | slice) -> TraceEntry | list[TraceEntry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"there is no trace {index}: there are {len(self)}")
        place = bisect_right(self._ends, at)
        return self._entry(place, at - (self._ends[place - 1] if place else 0), at + 1)

    def __iter__(self) -> Iterator[TraceEntry]:
        number = 0
        for place, end in enumerate(self._ends):
            for position in range(end - number):
                number += 1
                yield self._entry(place, position, number)

    def _entry(self, place: int, position: int, number: int) -> TraceEntry:
        at = self._first_traces[place] + position
        name = self._ids[self._id_ends[at - 1] if at else 0 : self._id_ends[at]].decode("utf-8", "surrogatepass")
        where = (number, self._steps[place], name, self._offsets[place], self._records[place])
        if place < self._num_lines:
            return TraceEntry(*where, None)
        return TraceEntry(*where, position, self._num_steps[at], self._num_tokens[at], bool(self._failed[at]))

    def extend(self) -> bool:
        """Read what was appended since. Returns whether earlier entries changed: a resumption took some of them back,
        or a file was replaced. Raises DamagedBlock; what comes before the damage is in the index then."""
        refuse_symlinks(self.folder)
        jsonl, store = self.folder / JSONL_FILE, self.folder / TRACES_FILE
        count = len(self)
        was_replaced = not self._continues(jsonl, store)
        if was_replaced:
            self._clear()
        before = len(self)
        try:
            self._read_lines(jsonl)
            self._read_blocks(store)
        finally:
            shrank = self._apply_marks(before)
        return (was_replaced and count > 0) or shrank

    def _continues(self, jsonl: Path, store: Path) -> bool:
        """Whether the files only grew: lines come before blocks, so none may follow once there are blocks."""
        lines = _size(jsonl)
        if (last := self._last_block) is None:
            return lines >= self._line_offset
        if lines != self._jsonl_bytes or _file_id(store) != self._store_id:
            return False
        try:
            with BlockReader(store) as reader:
                return reader.block_at(last.offset) == last
        except (FileNotFoundError, DamagedBlock):
            return False

    def _read_lines(self, path: Path) -> None:
        self._jsonl_bytes = _size(path)
        if self._jsonl_bytes <= self._line_offset:
            return
        with open(path, "rb") as file:
            file.seek(self._line_offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                at, self._line_offset = self._line_offset, self._line_offset + len(line)
                self._line_number += 1
                start = _LINE_START.match(line)
                if start is None or not line.endswith(b"}\n"):
                    continue
                if start[1] == b"resumed":
                    self._marks.append((len(self._steps), int(start[2])))
                elif start[3] is not None:
                    with contextlib.suppress(ValueError):  # whoever reads that line is told that it is damaged
                        self._add(int(start[2]), at, self._line_number, [(json.loads(start[3]), _UNKNOWN, _UNKNOWN, 0)])
                        self._num_lines += 1

    def _read_blocks(self, path: Path) -> None:
        last = self._last_block
        begin = (0, 1, 0) if last is None else (last.end, last.number + 1, last.before + last.count)
        if not path.is_file():
            return
        self._store_id = _file_id(path)
        with BlockReader(path) as reader:
            for block, directory in reader.scan(False, *begin):
                if block.kind == RESUMED:
                    self._marks.append((len(self._steps), block.step))
                elif block.kind == ITEMS:
                    try:
                        rows = parse_rows(directory, block.count)[0]
                    except ValueError as why:
                        raise DamagedBlock(path, block.number, str(why), block.offset) from None
                    self._add(block.step, block.offset, block.number, rows)
                self._last_block = block

    def _add(self, step: int, offset: int, record: int, rows: Sequence[Sequence[object]]) -> None:
        """A place with its traces: problem id, steps, tokens, whether it failed."""
        self._first_traces.append(len(self._id_ends))
        for name, num_steps, num_tokens, failed in rows:
            self._ids += name.encode("utf-8", "surrogatepass")  # type: ignore[attr-defined]
            self._id_ends.append(len(self._ids))
            self._num_steps.append(num_steps)  # type: ignore[arg-type]
            self._num_tokens.append(num_tokens)  # type: ignore[arg-type]
            self._failed.append(failed)  # type: ignore[arg-type]
        self._steps.append(step)
        self._offsets.append(offset)
        self._records.append(record)
        self._ends.append(len(self) + len(rows))

    def _apply_marks(self, before: int) -> bool:
        """Remove the places that a resumption took back. Returns whether one of the first `before` traces went."""
        if not self._marks:
            return False
        after = np.full(len(self._steps) + 1, np.iinfo(np.int64).max)  # the lowest step of a mark at or after a place
        places, steps = np.array(self._marks, np.int64).T
        np.minimum.at(after, places, steps)
        after = np.minimum.accumulate(after[::-1])[::-1]
        valid = np.frombuffer(self._steps, np.int64) < after[1:]
        self._marks = []
        ends = np.frombuffer(self._ends, np.uint32).astype(np.int64)
        counts = np.diff(ends, prepend=0)
        is_affected = bool(((ends - counts < before) & ~valid).any())
        columns = ("_steps", "_offsets", "_records", "_first_traces")
        for name in columns:
            column: array[int] = getattr(self, name)
            kept = np.frombuffer(column, f"i{column.itemsize}")[valid]
            setattr(self, name, array(column.typecode, kept.tobytes()))
        self._ends = array("I", np.cumsum(counts[valid]).astype(np.uint32).tobytes())
        self._num_lines = int(valid[: self._num_lines].sum())
        return is_affected


def _file_id(path: Path) -> tuple[int, int]:
    """Another one where the file was replaced."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
