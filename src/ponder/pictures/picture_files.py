"""Pictures from the bytes of image files: PNG by zlib alone, JPEG and WebP through Pillow where it is installed."""

from __future__ import annotations

import importlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ponder.pictures.picture import InvalidPicture, Picture, check_picture_size
from ponder.pictures.png import SIGNATURE, png_size, read_png

PILLOW_FORMATS = ("JPEG", "WEBP")
MAX_FILE_BYTES = 1 << 28

_JPEG_START, _RIFF_START, _WEBP_MARK = b"\xff\xd8\xff", b"RIFF", b"WEBP"


def read_picture(data: bytes) -> Picture:
    """The picture in the bytes of an image file."""
    if data.startswith(SIGNATURE):
        return read_png(data)
    image = _open_with_pillow(data)
    try:
        with warnings.catch_warnings(action="error"):  # Pillow warns of some damage
            return Picture.from_pixels(np.asarray(image.convert("RGB")))
    except (OSError, ValueError, SyntaxError, Warning):
        raise InvalidPicture(f"the {image.format} is damaged or ends too early; save or download it again") from None


def picture_size(data: bytes) -> tuple[int, int]:
    """Width and height by the header alone, checked as for the whole picture."""
    return png_size(data) if data.startswith(SIGNATURE) else _open_with_pillow(data).size


def read_picture_bytes(path: Path) -> bytes:
    """The bytes of an image file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidPicture(f"the picture {path} has more than {MAX_FILE_BYTES:,} bytes; make it smaller first")
        return path.read_bytes()
    except OSError as why:
        raise InvalidPicture(f"cannot read the picture {path}: {why.strerror}; give the folder that holds it") from None


def _open_with_pillow(data: bytes) -> Any:
    """An image whose header is read and whose size is checked."""
    webp = data.startswith(_RIFF_START) and data[8:12] == _WEBP_MARK
    if not data.startswith(_JPEG_START) and not webp:
        raise InvalidPicture("the picture is neither PNG nor JPEG nor WebP; convert it to PNG first")
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        kind = "WebP" if webp else "JPEG"
        raise InvalidPicture(
            f"reading a {kind} needs the package 'pillow': pip install 'ponder[pictures]', or convert it to PNG"
        ) from None
    try:
        with warnings.catch_warnings(action="ignore"):  # of its own limit on sizes; ours follows
            image = pillow.open(io.BytesIO(data), formats=PILLOW_FORMATS)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
        raise InvalidPicture("the picture's header cannot be read; save or download it again") from None
    check_picture_size(*image.size)
    return image
