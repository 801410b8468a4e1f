"""The traces of a run: the one reader of everything that the model wrote.

New traces are in `traces.bin`, in compressed blocks (runs/block_file.py, runs/trace_blocks.py). Earlier versions wrote
`traces.jsonl`, one trace per line (runs/records.py). Such a run stays readable, and a run that an earlier version began
has both: what is in `traces.jsonl` comes first. A mark that the run resumed from step k takes back earlier traces of
step k and later, in both files. The files may be growing while they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ponder.errors import RunError
from ponder.runs import block_file
from ponder.runs.block_file import BlockReader, DamagedBlock, StoredBlock
from ponder.runs.picture_store import restore_pictures
from ponder.runs.records import (
    DamagedRecord,
    damaged_record,
    has_valid_checksum,
    last_record_number,
    raw_records,
    scan_places,
    without_checksum,
)
from ponder.runs.resumptions import ValidRecords
from ponder.runs.symlinks import refuse_symlinks
from ponder.runs.trace_blocks import TraceSummary, decode_records, decode_traces, parse_directory
from ponder.runs.trace_index import JSONL_FILE as JSONL_FILE
from ponder.runs.trace_index import TRACES_FILE as TRACES_FILE
from ponder.runs.trace_index import TraceEntry as TraceEntry
from ponder.runs.trace_index import TraceIndex as TraceIndex
from ponder.trace_json import trace_from_json
from ponder.types import Trace

TRACE_FILES = (JSONL_FILE, TRACES_FILE)  # in the order of their traces
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Place:
    """A trace, a block of them, or a mark that the run resumed from a step."""

    step: int
    offset: int
    record: int
    in_block: bool = False  # else it is a line of traces.jsonl
    is_mark: bool = False


def has_traces(folder: str | Path) -> bool:
    """Whether a run directory has a file of traces."""
    return any((Path(folder) / name).is_file() for name in TRACE_FILES)


def require_run_directory(folder: str | Path) -> None:
    """Raise unless a folder holds a run: its job, or records of one."""
    if not any((Path(folder) / name).is_file() for name in ("job.json", "metrics.jsonl", *TRACE_FILES)):
        raise RunError(f"{folder} is not a run directory: it holds no job.json")


def count_records(folder: Path) -> int:
    """How many traces a run has written, also those taken back later: only the ends of its files are read."""
    count = last_record_number(folder / JSONL_FILE)
    with contextlib.suppress(FileNotFoundError), BlockReader(folder / TRACES_FILE) as reader:
        last = reader.last_block()
        if last is None:  # a crash left a torn block, or one is being written
            last = max((block for block, _ in reader.scan()), key=lambda block: block.number, default=None)
        count += 0 if last is None else last.before + last.count
    return count


def has_solved_trace(folder: Path) -> bool:
    """Whether a trace did not fail."""
    if any("step" in record and not record.get("failed") for record in raw_records(folder / JSONL_FILE)):
        return True
    with contextlib.suppress(FileNotFoundError), BlockReader(folder / TRACES_FILE) as reader:
        return any(not s.failed for block, directory in reader.scan() for s in _summaries(reader, block, directory))
    return False


def read_traces(folder: str | Path) -> Iterator[tuple[int, Trace]]:
    """Every trace with its step, in the order in which they were written."""
    folder = Path(folder)
    refuse_symlinks(folder)
    require_run_directory(folder)
    places = list(_valid(_line_places(folder / JSONL_FILE), _block_places(folder / TRACES_FILE)))
    with contextlib.ExitStack() as stack:
        lines = _LineReader(folder / JSONL_FILE, stack)
        blocks = _TraceReader(folder / TRACES_FILE, stack)
        for place in places:
            if place.in_block:
                yield from ((place.step, trace) for trace in blocks.read(place.offset, place.record))
            else:
                yield place.step, lines.read(place.offset, place.record)


def index_traces(folder: Path) -> TraceIndex:
    """The traces that are valid after all resumptions, in order. It can be extended while the run is written."""
    if not has_traces(folder):
        refuse_symlinks(folder)
        if (folder / "job.json").is_file():
            raise RunError(f"{folder} holds no traces yet")
        raise RunError(f"{folder} is not a run directory: there is no job.json and no {TRACES_FILE}")
    return TraceIndex(folder)


def read_indexed(folder: Path, entries: Iterable[TraceEntry]) -> Iterator[tuple[TraceEntry, Trace]]:
    """These traces, one by one."""
    with contextlib.ExitStack() as stack:
        lines = _LineReader(folder / JSONL_FILE, stack)
        blocks = _TraceReader(folder / TRACES_FILE, stack)
        for entry in entries:
            if entry.position is None:
                yield entry, lines.read(entry.offset, entry.record)
            else:
                yield entry, blocks.read(entry.offset, entry.record)[entry.position]


def read_record(folder: Path, entry: TraceEntry) -> dict[str, Any]:
    """One trace as it is stored, for readers that need no arrays: JSON, in which an array may be its length."""
    with contextlib.ExitStack() as stack:
        if entry.position is None:
            return _LineReader(folder / JSONL_FILE, stack).read_record(entry.offset, entry.record)
        reader = _TraceReader(folder / TRACES_FILE, stack)
        return reader.read_records(entry.offset, entry.record)[entry.position]


def repair_traces(folder: Path, step: int, expected_count: int | None) -> tuple[int, str]:
    """Check the traces of steps before `step`, on which a checkpoint relies; cut off damage in later ones.

    `expected_count`: how many there must be; None: unknown. Returns how many there are, and what was cut off and why,
    or an empty text.
    """
    counts = ValidRecords[int]()  # number of traces
    lost, damage = False, None
    jsonl, store = (folder / name for name in TRACE_FILES)
    try:
        for resumed, at, count in _scan_counts(jsonl, store):
            if at is None:
                lost = True
            elif resumed:
                counts.take_back(at)
            elif at < step:
                counts.add(at, count)
    except (DamagedRecord, DamagedBlock) as found:
        damage = found
    total = sum(count for _, count in counts)
    whole = lost or expected_count is None or total == expected_count
    if damage is not None:
        if not whole:
            raise damage
        return total, _cut_off(damage, jsonl, store)
    if whole or expected_count is None:
        return total, ""
    if total > expected_count:
        raise RunError(
            f"{folder} holds {total - expected_count} traces too many of the steps before {step}: restore "
            f"{TRACES_FILE} from a copy"
        )
    mark = f'{{"lost": {last_record_number(jsonl)}}}'
    raise RunError(
        f"{folder} lacks {expected_count - total} traces of the steps before {step}: restore {TRACES_FILE} from a "
        f"copy, or write a line {mark} at the end of {JSONL_FILE} there to go on without"
    )


def repair_store(folder: Path) -> list[str]:
    """Mark damaged blocks of a run as lost, so that the others can be read and written on. Returns what was wrong."""
    refuse_symlinks(folder)
    if not (folder / TRACES_FILE).is_file():
        return []
    try:
        return block_file.mark_lost(folder / TRACES_FILE)
    except OSError as why:
        raise RunError(f"cannot repair {folder / TRACES_FILE}: {why.strerror}") from None


def traces_fingerprint(folder: Path) -> str:
    """The fingerprint of the valid traces of a run directory. A mark that the run resumed changes nothing."""
    digest = hashlib.blake2b(digest_size=12)
    jsonl, store = (folder / name for name in TRACE_FILES)
    blocks = list(_block_places(store))
    taken_back = any(place.is_mark for place in blocks)
    if jsonl.is_file():
        _hash_lines(jsonl, _valid(_line_places(jsonl), blocks) if taken_back or _has_mark(jsonl) else None, digest)
    if blocks:
        with BlockReader(store) as reader:
            for place in _valid(blocks):
                block = reader.block_at(place.offset)
                digest.update(f"{block.step} {block.count} ".encode())
                digest.update(reader.read_directory(block))
                digest.update(reader.read_body(block))
    return digest.hexdigest()


def _has_mark(jsonl: Path) -> bool:
    with open(jsonl, "rb") as file:
        return any(line.startswith(b'{"resumed"') for line in file)


def _hash_lines(jsonl: Path, valid: Iterable[_Place] | None, digest: Any) -> None:
    numbers = None if valid is None else {place.record for place in valid if not place.in_block}
    with open(jsonl, "rb") as file:
        for number, line in enumerate(file, 1):
            if numbers is None or number in numbers:
                digest.update(without_checksum(line))


# Places: where traces and marks are


def _valid(*places: Iterable[_Place]) -> Iterator[_Place]:
    """The places of traces that no later mark takes back, in order."""
    valid = ValidRecords[_Place]()
    for place in (place for each in places for place in each):
        if place.is_mark:
            valid.take_back(place.step)
        else:
            valid.add(place.step, place)
    return (place for _, place in valid)


def _line_places(path: Path) -> Iterator[_Place]:
    """Every line is parsed and its checksum compared."""
    for resumed, step, line, offset in scan_places(path):
        if step is not None:
            yield _Place(step, offset, line, is_mark=resumed)


def _block_places(path: Path) -> Iterator[_Place]:
    if not path.is_file():
        return
    with BlockReader(path) as reader:
        for block, _ in reader.scan():
            if block.kind != block_file.LOST:
                yield _Place(block.step, block.offset, block.number, True, block.kind == block_file.RESUMED)


def _summaries(reader: BlockReader, block: StoredBlock, directory: bytes) -> Sequence[TraceSummary]:
    if block.kind != block_file.ITEMS:
        return ()
    try:
        return parse_directory(directory, block.count)
    except ValueError as why:
        raise DamagedBlock(reader.path, block.number, str(why), block.offset) from None


def _scan_counts(jsonl: Path, store: Path) -> Iterator[tuple[bool, int | None, int]]:
    """Whether it is a mark, the step (None: traces are lost) and the number of traces, of every line and block."""
    for resumed, step, _, _ in scan_places(jsonl):
        yield resumed, step, 1
    if store.is_file():
        with BlockReader(store) as reader:
            for block, _ in reader.scan(check_bodies=True):
                is_lost = block.kind == block_file.LOST
                yield block.kind == block_file.RESUMED, None if is_lost else block.step, block.count


def _cut_off(damage: DamagedRecord | DamagedBlock, jsonl: Path, store: Path) -> str:
    if isinstance(damage, DamagedBlock):
        os.truncate(store, damage.offset)
        return f"{store.name} was damaged from block {damage.number} on, which is after what is kept"
    os.truncate(jsonl, damage.offset)
    store.unlink(missing_ok=True)  # it is written after the lines
    return f"{jsonl.name} was damaged from line {damage.line} on, which is after what is kept"


# Reading


class _LineReader:
    """Reads single lines of traces.jsonl."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self._path = path
        self._file = stack.enter_context(path.open("rb")) if path.is_file() else None

    def read(self, offset: int, number: int) -> Trace:
        return self._read(offset, number, trace_from_json)

    def read_record(self, offset: int, number: int) -> dict[str, Any]:
        return self._read(offset, number, dict)

    def _read(self, offset: int, number: int, make: Callable[[Any], _T]) -> _T:
        if self._file is None:
            raise RunError(f"{self._path} is gone: it was removed while it was read")
        self._file.seek(offset)
        line = self._file.readline()
        if not has_valid_checksum(line):
            raise damaged_record(self._path, number, "its checksum differs")
        try:
            return make(json.loads(without_checksum(line)))
        except KeyError as missing:
            raise damaged_record(self._path, number, f"it has no {missing}") from None
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as why:
            raise damaged_record(self._path, number, f"it is no trace: {why}") from None


class _TraceReader:
    """Reads the traces of single blocks of traces.bin, and remembers the last one."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self._reader = stack.enter_context(BlockReader(path)) if path.is_file() else None
        self._path, self._last_offset = path, -1
        self._restore = partial(restore_pictures, folder=path.parent)
        self._last: list[Trace] = []

    def read(self, offset: int, number: int) -> list[Trace]:
        if offset != self._last_offset:
            self._last = self._decode(offset, number, decode_traces)
            self._last_offset = offset
        return self._last

    def read_records(self, offset: int, number: int) -> list[dict[str, Any]]:
        return self._decode(offset, number, decode_records)

    def _decode(self, offset: int, number: int, decode: Callable[..., _T]) -> _T:
        if self._reader is None:
            raise RunError(f"{self._path} is gone: it was removed while it was read")
        block = self._reader.block_at(offset)
        try:
            return decode(self._reader.read_directory(block), block.count, self._reader.read_body(block), self._restore)
        except ValueError as why:
            raise DamagedBlock(self._path, number, str(why), offset) from None
