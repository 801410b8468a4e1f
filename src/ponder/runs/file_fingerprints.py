"""Fingerprints of files by their contents. Those of large files are kept, so that a start does not read them again.

A kept one counts only for the very file: same path, inode, size, and times of change to the nanosecond; and only where
the file was not changed just before it was read, since a clock may not tell two changes of one moment apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from ponder.cache_folder import cache_folder
from ponder.runs.records import read_records, without_checksum

MAX_WHOLE_FILE_BYTES = 2 << 30  # bytes of a file up to which all of it counts
BLOCK_BYTES, NUM_BLOCKS, END_BYTES = (
    4096,
    4096,
    1 << 20,
)  # of a larger one: so many blocks, and both ends, where a head's numbers lie
MIN_CACHED_FILE_BYTES = 8 << 20  # bytes from which a fingerprint is worth keeping
SETTLED_NANOSECONDS = 2_000_000_000  # nanoseconds after which a change shows in a file's times
MAX_FOLDER_FILES = 1_000  # of a folder, to read them all


def add_fingerprints(marks: dict[str, str], more: Mapping[str, str]) -> None:
    """Also where two things have one name: then it stands for both."""
    for name, mark in more.items():
        marks[name] = f"{marks[name]} {mark}" if name in marks else mark


def files_fingerprint(files: Iterable[Path]) -> str:
    """Of several files with their names."""
    digest = hashlib.blake2b(digest_size=12)
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size} {file_fingerprint(file)}\n".encode())
    return digest.hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """Of the files in a folder, and in those below. Of very many, the first count, and their sizes only."""
    files = sorted(islice(_walk_files(folder), MAX_FOLDER_FILES + 1))
    digest = hashlib.blake2b(digest_size=12)
    for file in files:
        inside = file_fingerprint(file) if len(files) <= MAX_FOLDER_FILES else file.stat().st_size
        digest.update(f"{file.relative_to(folder)} {inside}\n".encode())
    return digest.hexdigest()


def _walk_files(folder: Path) -> Iterator[Path]:
    for place, inner, names in os.walk(folder):
        inner.sort()
        yield from (file for name in sorted(names) if (file := Path(place) / name).is_file())


def traces_fingerprint(run: Path) -> str:
    """Of the traces of a run directory that still hold: a mark that it was gone on with changes nothing."""
    path = run / "traces.jsonl"
    with open(path, "rb") as file:
        again = any(line.startswith(b'{"resumed"') for line in file)
    valid = {number for number, _ in read_records(path)} if again else None
    digest = hashlib.blake2b(digest_size=12)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if valid is None or number in valid:
                digest.update(without_checksum(line))
    return digest.hexdigest()


def file_fingerprint(path: Path) -> str:
    """Of one file's contents."""
    path = path.resolve()
    found = path.stat()
    if found.st_size < MIN_CACHED_FILE_BYTES:
        return _hash_file(path, found.st_size)
    now = [found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, found.st_ctime_ns, MAX_WHOLE_FILE_BYTES]
    place = cache_folder() / "fingerprints" / hashlib.blake2b(str(path).encode(), digest_size=16).hexdigest()
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(place.read_text(encoding="utf-8"))
        if kept["file"] == now:
            return str(kept["mark"])
    began = time.time_ns()
    mark = _hash_file(path, found.st_size)
    if began - max(found.st_mtime_ns, found.st_ctime_ns) > SETTLED_NANOSECONDS:
        _write_cache(place, {"path": str(path), "file": now, "mark": mark})
    return mark


def _hash_file(path: Path, size: int) -> str:
    digest = hashlib.blake2b(digest_size=12)
    with path.open("rb") as file:
        if size <= MAX_WHOLE_FILE_BYTES:
            while part := file.read(1 << 20):
                digest.update(part)
            return digest.hexdigest()
        digest.update(file.read(END_BYTES))
        for i in range(NUM_BLOCKS):
            file.seek(i * size // NUM_BLOCKS)
            digest.update(file.read(BLOCK_BYTES))
        file.seek(size - END_BYTES)
        digest.update(file.read())
    return digest.hexdigest()


def _write_cache(place: Path, told: dict[str, object]) -> None:
    """Whole or not at all; where nothing can be kept it is read again."""
    beside = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(told), encoding="utf-8")
        beside.replace(place)
