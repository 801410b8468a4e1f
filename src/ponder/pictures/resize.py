"""Resize pictures with Lanczos's filter of three lobes, as image processors of vision-language models do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ponder.pictures.picture import Picture, check_picture_size

_LOBES = 3


def resize(picture: Picture, width: int, height: int) -> Picture:
    """The picture at another size; where it shrinks, every pixel of the old one counts."""
    if picture.size == (width, height):
        return picture
    check_picture_size(width, height)
    across = np.einsum("wx,yxc->ywc", _weights(picture.width, width), _rounded(picture.pixels))
    both = np.einsum("hy,ywc->hwc", _weights(picture.height, height), _rounded(across))
    return Picture.from_pixels(_rounded(both).astype(np.uint8))


def _rounded(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Whole numbers between 0 and 255, also between the two passes, as 8-bit images have them."""
    return np.clip(np.floor(values.astype(np.float64) + 0.5), 0, 255)


def _weights(old: int, new: int) -> NDArray[np.float64]:
    """How much each old pixel counts in each new one, [new, old]; the weights of a new pixel add up to 1."""
    scale = old / new
    stretch = max(scale, 1.0)
    centres = (np.arange(new) + 0.5) * scale
    distance = (np.arange(old)[None, :] + 0.5 - centres[:, None]) / stretch
    weights = np.where(np.abs(distance) < _LOBES, np.sinc(distance) * np.sinc(distance / _LOBES), 0.0)
    normed: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
    return normed
