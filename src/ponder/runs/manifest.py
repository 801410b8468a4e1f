"""The manifest of a folder that ponder wrote: the size and checksums of each file, and a checksum of the manifest.

A checkpoint has one (train/checkpoint.py), and so has a folder of `ponder export`. Code that reads a model, an adapter
or a tokenizer calls `verify` first, so that a damaged file is named and never loaded. A run that resumes compares
SHA-256; a model that is only loaded is compared by CRC-32, which finds every flipped bit in an eighth of the time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable
from concurrent import futures
from pathlib import Path
from typing import Any, BinaryIO

from ponder.errors import ModelError

MANIFEST_FILE = "manifest.json"
MODEL_ONLY = "model_only"  # of a checkpoint whose tensors are removed (train/model_only.py)
CHECKSUM_KEY = "sha256"  # of the manifest itself, over all its other keys
MAX_MANIFEST_BYTES = 64 << 20  # of a manifest; one of a thousand files has 100 KB
_CHECKSUM_THREADS = 8
_SETTLED_SECONDS = 2.0  # a file that changed this recently may change again within one tick of the file system's clock

_checksum_cache: dict[tuple[str, str, int, int, int], str] = {}  # by checksum, path, inode, size and time of change


class ManifestMismatch(Exception):
    """What is wrong with a folder."""


def write(folder: Path, **about: Any) -> None:
    """Write the manifest of all files that the folder holds now."""
    inside = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST_FILE)
    with futures.ThreadPoolExecutor(_CHECKSUM_THREADS, "checksum") as threads:
        both = [[threads.submit(_checksum, path, kind) for kind in ("crc32", "sha256")] for path in inside]
    files = {
        path.relative_to(folder).as_posix(): _file_entry(*(one.result() for one in pair))
        for path, pair in zip(inside, both, strict=True)
    }
    (folder / MANIFEST_FILE).write_text(to_checked_json({**about, "files": files}), encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a folder. Raises if a byte of it changed."""
    path = folder / MANIFEST_FILE
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ValueError
        text = path.read_text(encoding="utf-8")
        manifest: dict[str, Any] = json.loads(text)
        del manifest[CHECKSUM_KEY]
        if to_checked_json(manifest) == text:
            return manifest
        reason = "its checksum differs"
    except OSError as why:
        reason = str(why.strerror)
    except (ValueError, LookupError, TypeError, RecursionError):
        reason = "it is no manifest"
    raise ManifestMismatch(f"is damaged ({MANIFEST_FILE}: {reason})")


def check(folder: Path, names: Iterable[str], manifest: dict[str, Any], quick: bool = False) -> None:
    """Raise if one of these files changed. `quick`: compare the faster checksum, if the manifest has it."""
    names = list(names)
    with futures.ThreadPoolExecutor(_CHECKSUM_THREADS, "checksum") as threads:
        for fault in threads.map(lambda name: _find_fault(folder, name, manifest, quick), names):
            if fault:
                threads.shutdown(cancel_futures=True)
                raise ManifestMismatch(fault)


def _find_fault(folder: Path, name: str, manifest: dict[str, Any], quick: bool) -> str:
    """What is wrong with a file; empty if it is as the manifest says."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return f"is damaged ({MANIFEST_FILE}: {name!r} lies outside of it)"
    expected = manifest["files"][name]
    kind = "crc32" if quick and "crc32" in expected else "sha256"
    try:
        size, checksum = _checksum(folder / name, kind)
    except OSError as why:
        return f"is damaged ({name}: {why.strerror})"
    if size != expected["bytes"]:
        return f"is damaged ({name}: it has {size} bytes, not {expected['bytes']})"
    return "" if checksum == expected[kind] else f"is damaged ({name}: its checksum differs)"


def verify(folder: Path) -> None:
    """Refuse a folder in which a file differs from what ponder wrote. Folders of other programs have no manifest."""
    here = folder.resolve()
    home, names = (here, "") if _has_manifest(here) else (here.parent, f"{here.name}/")
    in_run = here.parent.name.startswith("step-") and here.parent.parent.name == "checkpoints"
    if not (_has_manifest(home) or (in_run and home != here)):
        return
    try:
        manifest = read(home)
        check(home, [name for name in manifest["files"] if name.startswith(names)], manifest, quick=True)
    except ManifestMismatch as fault:
        if in_run:
            way_out = "give an earlier checkpoint's model, or a copy of this one"
        else:
            way_out = f"copy or export it again; if you changed the file yourself, remove {home / MANIFEST_FILE}"
        raise ModelError(f"{home} {fault}: {way_out}") from None


def to_checked_json(manifest: dict[str, Any]) -> str:
    """The canonical text of a manifest, so that a change of any byte shows."""
    plain = json.dumps(manifest, sort_keys=True)
    return (
        json.dumps({**manifest, CHECKSUM_KEY: hashlib.sha256(plain.encode()).hexdigest()}, indent=1, sort_keys=True)
        + "\n"
    )


def file_checksums(path: Path) -> dict[str, Any]:
    """A file's size and checksums."""
    return _file_entry(_checksum(path, "crc32"), _checksum(path, "sha256"))


def _file_entry(crc32: tuple[int, str], sha256: tuple[int, str]) -> dict[str, Any]:
    return {"bytes": crc32[0], "crc32": crc32[1], "sha256": sha256[1]}


def _checksum(path: Path, kind: str) -> tuple[int, str]:
    """A file's size and one checksum. A process reads a file once, for as long as the file stays as it is."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        key = (kind, str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if key not in _checksum_cache:
            checksum = _crc32(file) if kind == "crc32" else hashlib.file_digest(file, kind).hexdigest()
            if time.time() - stat.st_mtime < _SETTLED_SECONDS:
                return stat.st_size, checksum
            _checksum_cache[key] = checksum
        return stat.st_size, _checksum_cache[key]


def _crc32(file: BinaryIO) -> str:
    sum_so_far = 0
    while block := file.read(1 << 20):
        sum_so_far = zlib.crc32(block, sum_so_far)
    return f"{sum_so_far:08x}"


def _has_manifest(folder: Path) -> bool:
    """Whether the folder has a manifest of ponder's. Other programs' manifest.json holds no SHA-256."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"sha256"' in file.read(MAX_MANIFEST_BYTES)
