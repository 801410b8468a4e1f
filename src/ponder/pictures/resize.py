"""Resize pictures as image processors of vision-language models do: with Lanczos's filter, or a bicubic one."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ponder.pictures.picture import Picture, check_picture_size

Filter = Literal["lanczos", "bicubic"]
_LOBES = 3  # of Lanczos's filter
_CUBIC = -0.5  # Keys's parameter


def resize(picture: Picture, width: int, height: int, kernel: Filter = "lanczos") -> Picture:
    """The picture at another size; where it shrinks, every pixel of the old one counts."""
    if picture.size == (width, height):
        return picture
    check_picture_size(width, height)
    across = _weights(picture.width, width, kernel) @ picture.pixels.astype(np.float64)  # [y, width, 3]
    both = _weights(picture.height, height, kernel) @ _rounded(across).reshape(picture.height, -1)
    return Picture.from_pixels(_rounded(both).astype(np.uint8).reshape(height, width, 3))


def _rounded(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Whole numbers between 0 and 255, also between the two passes, as 8-bit images have them. What is half up to the
    order of a sum is rounded up everywhere."""
    return np.clip(np.floor(values.astype(np.float64) + (0.5 + 1e-9)), 0, 255)


def _weights(old: int, new: int, kernel: Filter) -> NDArray[np.float64]:
    """How much each old pixel counts in each new one, [new, old]; the weights of a new pixel add up to 1."""
    scale = old / new
    stretch = max(scale, 1.0)
    centres = (np.arange(new) + 0.5) * scale
    distance = (np.arange(old)[None, :] + 0.5 - centres[:, None]) / stretch
    weights = _lanczos(distance) if kernel == "lanczos" else _bicubic(np.abs(distance))
    normed: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
    return normed


def _lanczos(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(distance) < _LOBES, np.sinc(distance) * np.sinc(distance / _LOBES), 0.0)


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys 1981, of distances from 0 up."""
    a = _CUBIC
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
