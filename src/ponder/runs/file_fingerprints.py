"""Fingerprints of files by their contents. Those of large files are cached, so that a start need not read them again.

A cached fingerprint is valid only for the very file: same path, inode, size, and times of change to the nanosecond; and
only if the file did not change just before it was read, since a clock may not tell apart two changes of one moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from itertools import islice
from pathlib import Path

from ponder.atomic_write import write_atomically
from ponder.cache_folder import cache_folder

MAX_WHOLE_FILE_BYTES = 2 << 30  # up to this size all of a file counts
BLOCK_BYTES, NUM_BLOCKS = 4096, 4096  # of a larger one: so many blocks,
END_BYTES = 1 << 20  # and both ends, where the weights of a head lie
MIN_CACHED_FILE_BYTES = 8 << 20  # from this size on a fingerprint is worth caching
SETTLED_NANOSECONDS = 2_000_000_000  # after this time a change shows in the times of a file
HASH_THREADS = 8  # for the files of a model
MAX_FOLDER_FILES = 1_000  # of a folder with more, only sizes count


def add_fingerprints(marks: dict[str, str], more: Mapping[str, str]) -> None:
    """Add more fingerprints. Where two inputs have one name, it stands for both."""
    for name, mark in more.items():
        marks[name] = f"{marks[name]} {mark}" if name in marks else mark


def files_fingerprint(files: Iterable[Path]) -> str:
    """The fingerprint of several files with their names."""
    digest, files = hashlib.blake2b(digest_size=12), list(files)
    with futures.ThreadPoolExecutor(HASH_THREADS, "fingerprint") as threads:
        for file, mark in zip(files, threads.map(file_fingerprint, files), strict=True):
            digest.update(f"{file.name} {file.stat().st_size} {mark}\n".encode())
    return digest.hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """The fingerprint of all files in a folder and below it. Of very many, the first ones count, by size only."""
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


def file_fingerprint(path: Path) -> str:
    """The fingerprint of the contents of a file."""
    path = path.resolve()
    stat = path.stat()
    if stat.st_size < MIN_CACHED_FILE_BYTES:
        return _hash_file(path, stat.st_size)
    now = [stat.st_ino, stat.st_dev, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, MAX_WHOLE_FILE_BYTES]
    place = cache_folder() / "fingerprints" / hashlib.blake2b(str(path).encode(), digest_size=16).hexdigest()
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        cached = json.loads(place.read_text(encoding="utf-8"))
        if cached["file"] == now:
            return str(cached["mark"])
    began = time.time_ns()
    mark = _hash_file(path, stat.st_size)
    if began - max(stat.st_mtime_ns, stat.st_ctime_ns) > SETTLED_NANOSECONDS:
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


def _write_cache(place: Path, entry: dict[str, object]) -> None:
    """Write atomically. If it cannot be written, the file is read again next time."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps(entry), suffix=f".{os.getpid()}")
