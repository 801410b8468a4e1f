"""Large pictures of a run: each is kept once, as a file named by its hash, and traces refer to it.

A picture is a data URL in the messages of a problem. In a record of `traces.bin` one of more than `MIN_FILE_BYTES`
becomes `pictures/SHA256.png`, relative to the run directory; a smaller one stays where it is, since a file of its own
would take more. Readers get the messages as they were.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ponder.atomic_write import write_bytes_atomically
from ponder.errors import RunError

PICTURES_FOLDER = "pictures"
MIN_FILE_BYTES = 16 << 10
_MAX_FILE_BYTES = 256 << 20  # of what is read back
_DATA_URL = re.compile(r"data:image/(png|jpeg|jpg|webp);base64,")
_REFERENCE = re.compile(rf"{PICTURES_FOLDER}/([0-9a-f]{{64}})\.(png|jpeg|jpg|webp)\Z")
_KEYS = ("image_url", "image", "url")  # of a part of a message


def store_pictures(record: dict[str, Any], folder: Path) -> None:
    """Write the large pictures of a trace's problem that the run has not kept yet, and refer to them in the record."""
    _replace_urls(record, lambda url: _store(url, folder))


def restore_pictures(record: dict[str, Any], folder: Path) -> None:
    """Put the pictures back that a record refers to. Raises RunError where one is missing or damaged."""
    _replace_urls(record, lambda url: _restore(url, folder))


def _replace_urls(record: dict[str, Any], change: Callable[[str], str]) -> None:
    """Change the addresses of pictures in the messages of a record, whose lists may belong to others."""
    problem = record.get("problem") if isinstance(record, dict) else None  # another is refused elsewhere
    messages = problem.get("messages") if isinstance(problem, dict) else None
    if not isinstance(problem, dict) or not isinstance(messages, list):
        return
    problem["messages"] = [
        {**message, "content": [_with_url(part, change) for part in message["content"]]}
        if isinstance(message, dict) and isinstance(message.get("content"), list | tuple)
        else message
        for message in messages
    ]


def _with_url(part: Any, change: Callable[[str], str]) -> Any:
    if not isinstance(part, dict):
        return part
    for key in _KEYS:
        value = part.get(key)
        if isinstance(value, dict) and isinstance(value.get("url"), str):
            return {**part, key: {**value, "url": change(value["url"])}}
        if isinstance(value, str):
            return {**part, key: change(value)}
    return part


def _store(url: str, folder: Path) -> str:
    found = _DATA_URL.match(url)
    if found is None or len(url) * 3 // 4 < MIN_FILE_BYTES:
        return url
    try:
        data = base64.b64decode(url[found.end() :], validate=True)
    except (binascii.Error, ValueError):
        return url
    if _data_url(data, found[1]) != url:  # written in another way, which would not come back
        return url
    name = f"{PICTURES_FOLDER}/{hashlib.sha256(data).hexdigest()}.{found[1]}"
    if not (folder / name).is_file():
        (folder / PICTURES_FOLDER).mkdir(exist_ok=True)
        write_bytes_atomically(folder / name, data, sync=True)
    return name


def _restore(url: str, folder: Path) -> str:
    found = _REFERENCE.match(url)
    if found is None:
        return url
    path = folder / url
    try:
        if path.is_symlink() or path.stat().st_size > _MAX_FILE_BYTES:
            raise RunError(f"{path} is no picture of this run: replace it by a copy of the picture")
        data = path.read_bytes()
    except OSError as why:
        raise RunError(f"{path}, which a trace shows, cannot be read: {why.strerror}; restore it from a copy") from None
    if hashlib.sha256(data).hexdigest() != found[1]:
        raise RunError(f"{path} is damaged, its content has another hash than its name: restore it from a copy")
    return _data_url(data, found[2])


def _data_url(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
