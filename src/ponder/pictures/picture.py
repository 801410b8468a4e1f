"""`Picture`: RGB pixels and their hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError

Pixels = NDArray[np.uint8]  # [height, width, 3]

MAX_PICTURE_PIXELS = 16_000_000


class InvalidPicture(UsageError):
    """Why something is no picture that can be read."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image in 8-bit RGB. `rgb` has its pixels row by row, three bytes each."""

    width: int
    height: int
    rgb: bytes

    def __post_init__(self) -> None:
        check_picture_size(self.width, self.height)
        if len(self.rgb) != 3 * self.width * self.height:
            raise InvalidPicture(
                f"a picture of {self.width} x {self.height} pixels has {3 * self.width * self.height:,} bytes of RGB, "
                f"but {len(self.rgb):,} are given"
            )

    @classmethod
    def from_pixels(cls, pixels: Pixels) -> Self:
        """From an array [height, width, 3] of uint8."""
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise InvalidPicture(
                f"pixels have shape {pixels.shape} and type {pixels.dtype}; give uint8 [height, width, 3]"
            )
        return cls(pixels.shape[1], pixels.shape[0], pixels.tobytes())

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.width, self.height

    @property
    def pixels(self) -> Pixels:
        """The pixels [height, width, 3], read-only."""
        return np.frombuffer(self.rgb, np.uint8).reshape(self.height, self.width, 3)

    @property
    def sha256(self) -> str:
        """Equal for pictures with the same size and pixels, whatever file they came from."""
        return hashlib.sha256(f"{self.width} {self.height} ".encode() + self.rgb).hexdigest()

    def __repr__(self) -> str:  # without the pixels
        return f"Picture({self.width}x{self.height}, {self.sha256[:12]})"


def check_picture_size(width: int, height: int) -> None:
    """Refuse a size before memory is taken for it."""
    if width < 1 or height < 1:
        raise InvalidPicture(f"a picture of {width} x {height} pixels shows nothing; give at least one pixel")
    if width * height > MAX_PICTURE_PIXELS:
        raise InvalidPicture(
            f"the picture has {width:,} x {height:,} pixels, more than {MAX_PICTURE_PIXELS:,}; make it smaller first"
        )
