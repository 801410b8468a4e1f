"""An index of the traces of a run, in a database in the user's cache folder: run directories are never written to.

First pass: where the blocks of `traces.bin` are, from their headers and directories; it reads on where it ended when
the file grew. A mark that the run resumed takes blocks back, and numbers the rest anew. Second pass: a row for each
trace, which needs the block decoded; done for the blocks that a request needs, or for all within its time.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ponder.cache_folder import cache_folder
from ponder.errors import RunError
from ponder.runs import block_file
from ponder.runs.block_file import BlockReader, DamagedBlock
from ponder.runs.symlinks import refuse_symlinks
from ponder.runs.trace_store import JSONL_FILE, TRACES_FILE, TraceEntry, index_traces, read_indexed, read_record
from ponder.types import Trace
from ponder.viewer.errors import NotFound
from ponder.viewer.plain_files import file_size
from ponder.viewer.trace_facts import trace_row

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE state(name TEXT PRIMARY KEY, value);
CREATE TABLE blocks(id INTEGER PRIMARY KEY, offset INTEGER, record INTEGER, step INTEGER, count INTEGER,
                    first INTEGER, position INTEGER, done INTEGER DEFAULT 0);
CREATE INDEX blocks_first ON blocks(first);
CREATE TABLE rows(number INTEGER PRIMARY KEY, step INTEGER, problem TEXT, reward REAL, advantage REAL, length INTEGER,
                  ratio REAL, stops TEXT, data TEXT);
CREATE INDEX rows_step ON rows(step);
"""
_BLOCK_COLUMNS = "offset, record, step, count, first, position"
_CACHED_BLOCKS = 2  # decoded ones, in memory
_MAX_DATABASES = 200


class RowDatabase:
    """The index of one run. All methods may be called from any thread."""

    def __init__(self, folder: Path, verifier: str = "") -> None:
        """`verifier`: the scorer whose score is the reward; empty: the first of each answer."""
        self.folder, self.verifier, self.damage = folder, verifier, ""
        self._lock = threading.RLock()
        self._recent: OrderedDict[tuple[int, int], list[Trace]] = OrderedDict()
        self._db = self._open()

    def _path(self) -> Path:
        name = hashlib.blake2b(os.fsencode(self.folder), digest_size=16).hexdigest()
        return cache_folder() / "view" / f"{name}.sqlite"

    def _open(self) -> sqlite3.Connection:
        """The database of this folder; one in memory where the cache folder cannot be written."""
        file = self._path()
        for path in (str(file), str(file), ":memory:"):
            try:
                if path != ":memory:":
                    file.parent.mkdir(parents=True, exist_ok=True)
                    _remove_old_databases(file.parent)
                db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=2.0)
                db.execute("PRAGMA journal_mode = MEMORY")
                db.execute("PRAGMA synchronous = OFF")  # what a power failure damages is made again
                if db.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA_VERSION:
                    _create_tables(db)
                db.execute("SELECT count(*) FROM blocks, state LIMIT 1").fetchone()
                return db
            except (OSError, sqlite3.Error):  # damaged, of another version, or not ours: it can be made again
                with contextlib.suppress(OSError):
                    os.unlink(path)
        raise RunError("the index of traces can be kept neither in the cache folder nor in memory")

    def discard(self) -> None:
        """Close a damaged database and remove it."""
        with self._lock:
            self._db.close()
            with contextlib.suppress(OSError):
                self._path().unlink()

    # First pass

    @property
    def total(self) -> int:
        """How many valid traces there are."""
        return int(self._db.execute("SELECT coalesce(sum(count), 0) FROM blocks").fetchone()[0])

    def refresh(self) -> None:
        """Take in what was written since."""
        refuse_symlinks(self.folder)
        with self._lock, self._transaction():
            if file_size(self.folder / JSONL_FILE):
                self._refresh_lines()
            else:
                self._refresh_blocks()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _state(self, name: str, default: Any = None) -> Any:
        row = self._db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def _set_state(self, **values: Any) -> None:
        pairs = [(name, json.dumps(value)) for name, value in values.items()]
        self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", pairs)

    def _clear(self) -> None:
        for table in ("blocks", "rows", "state"):
            self._db.execute(f"DELETE FROM {table}")
        self._recent.clear()

    def _refresh_lines(self) -> None:
        """A run of an earlier version, with a line for each trace: indexed anew when a file changed."""
        sizes = [[os.stat(self.folder / name).st_ino, file_size(self.folder / name)]
                 for name in (JSONL_FILE, TRACES_FILE) if file_size(self.folder / name)]  # fmt: skip
        if self._state("files") == sizes:
            return
        self._clear()
        rows = ((e.offset, e.record, e.step, e.number, e.position) for e in index_traces(self.folder))
        self._db.executemany("INSERT INTO blocks(offset, record, step, count, first, position) VALUES (?,?,?,1,?,?)",
                             ((o, r, s, n, -1 if p is None else p) for o, r, s, n, p in rows))  # fmt: skip
        self._set_state(files=sizes)

    def _refresh_blocks(self) -> None:
        path = self.folder / TRACES_FILE
        if not file_size(path):
            self._clear()
            return
        with BlockReader(path) as reader:
            offset, expected, before = self._resume_point(reader, os.stat(path).st_ino)
            if offset == reader.size:
                return
            self.damage, marked, last = "", False, None
            number = self.total + 1
            try:
                for block, _ in reader.scan(False, offset, expected, before):
                    offset, expected, before, last = block.end, block.number + 1, block.before + block.count, block
                    if block.kind == block_file.RESUMED:
                        self._db.execute("DELETE FROM blocks WHERE step >= ?", (block.step,))
                        marked = True
                    elif block.kind == block_file.ITEMS:
                        self._db.execute(
                            "INSERT INTO blocks(offset, record, step, count, first, position) VALUES (?,?,?,?,?,0)",
                            (block.offset, block.number, block.step, block.count, number),
                        )
                        number += block.count
            except DamagedBlock as damage:
                self.damage = str(damage)
            if marked:
                self._renumber()
            if last is not None:
                self._set_state(inode=os.stat(path).st_ino, offset=offset, expected=expected, before=before,
                                last=[last.offset, last.number, last.directory_crc, last.body_crc])  # fmt: skip

    def _resume_point(self, reader: BlockReader, inode: int) -> tuple[int, int, int]:
        """Where to read on: at the start where the file is another one than before."""
        offset, last = self._state("offset", 0), self._state("last")
        if last is not None and self._state("inode") == inode and offset <= reader.size:
            with contextlib.suppress(DamagedBlock):
                block = reader.block_at(last[0])
                if [block.offset, block.number, block.directory_crc, block.body_crc] == last:
                    return offset, self._state("expected"), self._state("before")
        self._clear()
        return 0, 1, 0

    def _renumber(self) -> None:
        self._db.execute("DELETE FROM rows")
        self._db.execute("UPDATE blocks SET done = 0")
        number, changes = 1, []
        for block, count in self._db.execute("SELECT id, count FROM blocks ORDER BY id"):
            changes.append((number, block))
            number += count
        self._db.executemany("UPDATE blocks SET first = ? WHERE id = ?", changes)

    # Second pass

    def decode(self, condition: str, values: Sequence[Any], seconds: float) -> bool:
        """Make the rows of the blocks that fit an SQL condition, for about so long. Returns whether all are made."""
        deadline = time.monotonic() + seconds
        with self._lock:
            query = (
                f"SELECT id, offset, record, step, count, first, position FROM blocks WHERE done = 0 AND {condition}"
            )
            for block in self._db.execute(f"{query} ORDER BY id", tuple(values)).fetchall():
                if time.monotonic() > deadline:
                    return False
                self._decode_block(*block)
        return True

    def _decode_block(
        self, block: int, offset: int, record: int, step: int, count: int, first: int, position: int
    ) -> None:
        try:
            traces = self._read_block(offset, record, step, count, first, position)
        except RunError as why:  # the others can be shown
            self.damage = str(why)
            self._db.execute("UPDATE blocks SET done = 2 WHERE id = ?", (block,))
            return
        rows = [trace_row(first + i, step, trace, self.verifier) for i, trace in enumerate(traces)]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO rows VALUES (?,?,?,?,?,?,?,?,?)", map(_database_row, rows))
            self._db.execute("UPDATE blocks SET done = 1 WHERE id = ?", (block,))

    def _read_block(self, offset: int, record: int, step: int, count: int, first: int, position: int) -> list[Trace]:
        key = offset, position
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        at = None if position < 0 else position
        entries = [
            TraceEntry(first + i, step, "", offset, record, None if at is None else at + i) for i in range(count)
        ]
        with _no_garbage_collection():
            traces = [trace for _, trace in read_indexed(self.folder, entries)]
        self._recent[key] = traces
        while len(self._recent) > _CACHED_BLOCKS:
            self._recent.popitem(last=False)
        return traces

    def read(self, number: int) -> tuple[int, Trace]:
        """One trace, with its step."""
        with self._lock:
            offset, record, step, count, first, position = self._block_of(number)
            return step, self._read_block(offset, record, step, count, first, position)[number - first]

    def read_record(self, number: int) -> dict[str, Any]:
        """One trace as it is stored (see `trace_store.read_record`)."""
        with self._lock:
            offset, record, step, _, first, position = self._block_of(number)
            at = None if position < 0 else position + number - first
            with _no_garbage_collection():
                return read_record(self.folder, TraceEntry(number, step, "", offset, record, at))

    def _block_of(self, number: int) -> tuple[int, int, int, int, int, int]:
        """Offset, record, step, count, first number and position of the block that holds a trace."""
        found: tuple[int, int, int, int, int, int] | None = self._db.execute(
            f"SELECT {_BLOCK_COLUMNS} FROM blocks WHERE first <= ? ORDER BY first DESC LIMIT 1", (number,)
        ).fetchone()
        if found is None or not found[4] <= number < found[4] + found[3]:
            raise NotFound(f"there is no trace {number}: the run has {self.total}")
        return found

    # Queries

    def select(self, condition: str, values: Sequence[Any], order: str, limit: int, skip: int) -> list[dict[str, Any]]:
        with self._lock:
            query = f"SELECT data FROM rows WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?"
            return [json.loads(data) for (data,) in self._db.execute(query, (*values, limit, skip))]

    def count(self, condition: str, values: Sequence[Any]) -> int:
        with self._lock:
            return int(self._db.execute(f"SELECT count(*) FROM rows WHERE {condition}", tuple(values)).fetchone()[0])

    def numbers(self, condition: str, values: Sequence[Any], order: str) -> list[int]:
        with self._lock:
            query = f"SELECT number FROM rows WHERE {condition} ORDER BY {order}"
            return [number for (number,) in self._db.execute(query, tuple(values))]


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A large tree is 100,000 objects, among which the collector would search in vain, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _create_tables(db: sqlite3.Connection) -> None:
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        db.execute(f'DROP TABLE "{table}"')
    db.executescript(_SCHEMA)
    db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _database_row(row: dict[str, Any]) -> tuple[Any, ...]:
    advantage = None if row["advantage"] is None else row["advantage"][1]
    stops = "".join(f",{stop}" for stop in row["stop"]) + ","
    problem = row["problem_id"].encode("utf-8", "replace").decode()
    return (row["number"], row["step"], problem, row["reward"], advantage, row["tokens"], row["ratio"],
            stops.encode("utf-8", "replace").decode(), json.dumps(row))  # fmt: skip


def _remove_old_databases(place: Path) -> None:
    """Of folders that were looked at long ago."""
    files = sorted(place.glob("*.sqlite"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MAX_DATABASES]:
        path.unlink(missing_ok=True)
