"""A picture in a column of a row: the path of a file, its bytes, base64 or a data URL, as JSONL files and the data sets
of Hugging Face have it. A source is checked by its header when the row is read, and decoded when its problem is."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.errors import TaskError
from ponder.pictures.message_parts import base64_bytes, is_data_url
from ponder.pictures.picture import InvalidPicture, Picture
from ponder.pictures.picture_files import picture_size, read_picture, read_picture_bytes
from ponder.pictures.png import SIGNATURE, write_png
from ponder.tasks.split import stable_hash

_MIN_BASE64_CHARS = 80  # of the smallest image files; a path is shorter or has a suffix
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, slots=True)
class PictureSource:
    """A picture that is not decoded yet: a file, or the bytes of one."""

    path: Path | None = None
    data: bytes = b""

    @property
    def name(self) -> str:
        return "in the row" if self.path is None else str(self.path)

    @property
    def file_bytes(self) -> bytes:
        return self.data if self.path is None else read_picture_bytes(self.path)

    @property
    def key(self) -> str:
        """Equal for equal files, wherever they lie."""
        return str(stable_hash(self.file_bytes.hex()))

    def size(self) -> tuple[int, int]:
        """Width and height by the header."""
        return self._named(picture_size)

    def read(self) -> Picture:
        return self._named(read_picture)

    def _named(self, read: Any) -> Any:
        try:
            return read(self.file_bytes)
        except InvalidPicture as why:
            raise TaskError(f"the picture {self.name}: {why}") from None


def picture_sources(value: Any, folder: Path) -> tuple[PictureSource, ...]:
    """The pictures of a column, one or a list of them. Paths are relative to `folder`."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    return tuple(_picture_source(one, folder) for one in values)


def plain_pictures(value: Any) -> Any:
    """The value of a column as text: bytes and images of Pillow as data URLs, paths as they are. A run keeps rows that
    are given in memory as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain_pictures(one) for one in value]
    if isinstance(value, Mapping) and not (value.get("bytes") or value.get("base64")):
        return value.get("path") or value.get("url")
    data = _picture_source(value, Path()).data
    kind = "png" if data.startswith(SIGNATURE) else "webp" if data.startswith(b"RIFF") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _picture_source(value: Any, folder: Path) -> PictureSource:
    if isinstance(value, Mapping):  # Hugging Face's Image(decode=False)
        encoded = value.get("bytes") or value.get("base64")
        if isinstance(encoded, str):
            return _from_base64(encoded)
        value = encoded or value.get("path") or value.get("url")
    if isinstance(value, Picture):
        return PictureSource(data=write_png(value))
    if hasattr(value, "save") and hasattr(value, "mode"):  # an image of Pillow, which Hugging Face's Image() gives
        buffer = io.BytesIO()
        value.convert("RGB").save(buffer, "PNG")
        return PictureSource(data=buffer.getvalue())
    if isinstance(value, bytes | bytearray):
        return PictureSource(data=bytes(value))
    if not isinstance(value, str) or not value:
        raise TaskError(f"the picture is {value!r:.40}; give a path, bytes, base64 or a data URL")
    if is_data_url(value):
        return _from_base64(value.partition(",")[2])
    if value.startswith(("http://", "https://")):
        raise TaskError(f"the picture {value:.60} is an address; download it and give its path (nothing is fetched)")
    if len(value) >= _MIN_BASE64_CHARS and not value.lower().endswith(_SUFFIXES):
        return _from_base64(value)
    return PictureSource(path=_path_in(folder, value))


def _path_in(folder: Path, written: str) -> Path:
    path = folder / written
    if not path.is_file():
        raise TaskError(f"the picture {path} is missing; paths are relative to {folder}")
    return path


def _from_base64(text: str) -> PictureSource:
    try:
        return PictureSource(data=base64_bytes(text))
    except InvalidPicture as why:
        raise TaskError(str(why)) from None
