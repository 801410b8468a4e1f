"""Which weights a job means, beyond the paths at which they lie: a model may be trained anew in the same folder.

A run keeps a fingerprint of each (`environment.json`), and does not go on with others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ponder import jobs
from ponder.errors import PonderError
from ponder.models.load import FAST, FOREIGN, NAMED, SERVED, find, pin
from ponder.pipelines.guides import learned
from ponder.runs import read_job

WHOLE = 64 << 20  # bytes of a file up to which all of it counts
BLOCK, BLOCKS, ENDS = 4096, 256, 1 << 20  # of a larger one: so many blocks, and both ends, where a head's numbers lie


def weights_of(job: Any) -> dict[str, str]:
    """By where the job names them, a fingerprint of each that is there."""
    return {where: mark for where, name in _named(jobs.encode(job)) if (mark := _mark(name))}


def pin_guide(guide: str, folder: str | Path) -> str:
    """A learned guide as the checkpoint it is now. A run that began without that goes on without it."""
    kind, rest = learned(guide)
    if not kind:
        return guide
    if (Path(folder) / "job.json").is_file():
        began = read_job(folder)
        if isinstance(began, dict) and began.get("guide") == guide:
            return guide
    return f"{kind}:{pin(rest)}"


def fingerprint(path: Path) -> str:
    """Of a model's folder or GGUF file; files of many gigabytes are not read whole."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors")) + sorted(path.glob("config.json"))
    name = hashlib.blake2b(digest_size=12)
    for file in files:
        size = file.stat().st_size
        name.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as data:
            if size <= WHOLE:
                name.update(data.read())
                continue
            name.update(data.read(ENDS))
            for i in range(BLOCKS):
                data.seek(i * size // BLOCKS)
                name.update(data.read(BLOCK))
            data.seek(size - ENDS)
            name.update(data.read())
    return name.hexdigest()


def _named(data: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The job's model and teacher, and learned judges wherever they stand."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _named(value, f"{where}.{key}" if where else key)
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _named(value, f"{where}.{i}")
    elif isinstance(data, str):
        if judge := learned(data)[1]:
            yield where, judge
        elif where in ("model", "teacher"):
            yield where, data


def _mark(name: str) -> str:
    """Empty where there are no files to read: a server's model, a library's, or one that is gone."""
    if name.startswith(SERVED) or name in NAMED:
        return ""
    try:
        return fingerprint(find(name.partition(":")[2] if name.startswith((FOREIGN, FAST)) else name))
    except (PonderError, OSError):
        return ""  # whoever loads it says what is wrong
