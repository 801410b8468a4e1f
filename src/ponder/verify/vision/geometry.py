"""Boxes and masks: strict parsing, overlap and average precision. Numbers only; the scorers are in `verifiers`.

N: predicted boxes, M: gold boxes, H, W: height and width of an image in pixels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]  # x1, y1, x2, y2
Size = tuple[int, int]  # width, height, as image libraries say it
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

MAX_MASK_PIXELS = 16_000_000
MAX_POLYGON_POINTS = 2_000
MAX_CROSSINGS_AT_ONCE = 1 << 20  # of rows of pixels and edges of a polygon
COCO_IOU_THRESHOLDS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))  # COCO's 0.50:0.05:0.95


class InvalidGeometry(ValueError):
    """Why something is no box, point or mask."""


def parse_numbers(value: object, count: int) -> list[float]:
    """Parse a list of exactly `count` finite numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != count:
        raise InvalidGeometry(f"not {count} numbers")
    for n in value:
        if isinstance(n, bool) or not isinstance(n, int | float) or abs(n) > 1e9 or not math.isfinite(n):
            raise InvalidGeometry("not all finite numbers")
    return [float(n) for n in value]


def parse_box(value: object, size: Size | None = None) -> Box:
    """[x1, y1, x2, y2] with x1 < x2 and y1 < y2, inside the image where its size is known."""
    x1, y1, x2, y2 = parse_numbers(value, 4)
    if not (x1 < x2 and y1 < y2):
        raise InvalidGeometry("a box needs x1 < x2 and y1 < y2")
    if size and not (x1 >= 0 and y1 >= 0 and x2 <= size[0] and y2 <= size[1]):
        raise InvalidGeometry("the box leaves the image")
    return x1, y1, x2, y2


_NUMBER = r"\s{0,8}(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s{0,8}"
_CORNER_PAIR = re.compile(rf"\({_NUMBER},{_NUMBER}\)\s{{0,8}},?\s{{0,8}}\({_NUMBER},{_NUMBER}\)")


def parse_corner_pairs(text: str) -> list[float]:
    """The four numbers of `(x1,y1),(x2,y2)`."""
    match = _CORNER_PAIR.fullmatch(text.strip())
    if match is None:
        raise InvalidGeometry("not two corners (x1,y1),(x2,y2)")
    return [float(number) for number in match.groups()]


def parse_size(value: object) -> Size:
    width, height = parse_numbers(value, 2)
    if not (width >= 1 and height >= 1 and width.is_integer() and height.is_integer()):
        raise InvalidGeometry("a size is two whole numbers from 1 up, width and height")
    if width * height > MAX_MASK_PIXELS:
        raise InvalidGeometry(f"more than {MAX_MASK_PIXELS} pixels")
    return int(width), int(height)


def iou(a: Box, b: Box) -> float:
    """Area of the intersection over area of the union."""
    shared = _shared(a, b)
    return shared / (_area(a) + _area(b) - shared)


def iou_matrix(boxes: Sequence[Box], others: Sequence[Box]) -> Array:
    """The IoU [N, M] of each box with each of the others."""
    return np.array([[iou(a, b) for b in others] for a in boxes]).reshape(len(boxes), len(others))


def giou(a: Box, b: Box) -> float:
    """Generalised IoU (Rezatofighi et al. 2019): IoU less the share of the hull that is in neither; -1 to 1."""
    hull = _area((min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])))
    union = _area(a) + _area(b) - _shared(a, b)
    return iou(a, b) - (hull - union) / hull


def _shared(a: Box, b: Box) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, wide) * max(0.0, high)


def _area(a: Box) -> float:
    return (a[2] - a[0]) * (a[3] - a[1])


def parse_polygon(value: object) -> Array:
    """[[x, y], ...] or COCO's flat [x, y, x, y, ...], at least three corners, as an array [corners, 2]."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidGeometry("not a list of points")
    if value and not isinstance(value[0], Sequence):
        value = [value[i : i + 2] for i in range(0, len(value), 2)]
    if not 3 <= len(value) <= MAX_POLYGON_POINTS:
        raise InvalidGeometry(f"a polygon has 3 to {MAX_POLYGON_POINTS} corners")
    return np.array([parse_numbers(point, 2) for point in value])


def points_in_polygon(points: Array, corners: Array) -> Mask:
    """Which points [..., 2] lie in a polygon, by the even-odd rule: how often a ray to the right crosses its edges."""
    x, y = points[..., 0], points[..., 1]
    crossed = np.zeros(x.shape, bool)
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y1 != y2:
            crossed ^= ((y1 > y) != (y2 > y)) & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return crossed


def rasterize_polygon(corners: Array, image: Size) -> Mask:
    """The pixels [H, W] whose centres lie in a polygon, rows at a time: work grows with rows times corners."""
    width, height = image
    mask = np.zeros((height, width + 1), bool)
    x1, y1 = corners.T
    x2, y2 = np.roll(corners, -1, axis=0).T
    centres = np.arange(width + 1) + 0.5
    first, last = max(0, math.floor(y1.min())), min(height, math.ceil(y1.max()))
    at_once = max(1, MAX_CROSSINGS_AT_ONCE // len(corners))
    for begin in range(first, last, at_once):
        y = np.arange(begin, min(last, begin + at_once))[:, None] + 0.5
        rows, edges = np.nonzero((y1 > y) != (y2 > y))
        x = (x2 - x1)[edges] * (y[rows, 0] - y1[edges]) / (y2 - y1)[edges] + x1[edges]
        starts = np.minimum(np.searchsorted(centres, x), width)  # the first centre not left of each crossing
        np.logical_xor.at(mask, (begin + rows, starts), True)
    mask[first:last] = np.logical_xor.accumulate(mask[first:last], axis=1)
    return mask[:, :width]


def decode_rle(value: object) -> Mask:
    """COCO's uncompressed run lengths {"size": [height, width], "counts": [...]}: down the columns, zeros first."""
    if not isinstance(value, Mapping) or not {"size", "counts"} <= value.keys():
        raise InvalidGeometry("run lengths need 'size' and 'counts'")
    width, height = parse_size(list(value["size"])[::-1] if isinstance(value["size"], Sequence) else None)
    counts = value["counts"]
    if not isinstance(counts, Sequence) or not all(type(n) is int and n >= 0 for n in counts):
        raise InvalidGeometry("counts are whole numbers from 0 up (compressed counts, a string, are not read)")
    if sum(counts) != width * height:
        raise InvalidGeometry("the counts do not add up to the size")
    flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return flat.reshape(width, height).T


def parse_mask(value: object, image: Size | None) -> Mask:
    """A polygon (whose image size must be known) or run lengths, as pixels [H, W]."""
    if isinstance(value, Mapping):
        pixels = decode_rle(value)
        if image and pixels.shape != image[::-1]:
            raise InvalidGeometry("the mask has another size than the image")
        return pixels
    if image is None:
        raise InvalidGeometry("the size of the image is unknown")
    return rasterize_polygon(parse_polygon(value), image)


def mask_iou(a: Mask, b: Mask) -> float:
    union = np.count_nonzero(a | b)
    return float(np.count_nonzero(a & b) / union) if union else 0.0


def average_precision(scores_N: Array, overlaps_NM: Array, threshold: float) -> float:
    """COCO's AP of one class in one image: precision interpolated at 101 recalls, highest scores matched first."""
    count, gold = overlaps_NM.shape
    if not gold:
        return math.nan
    order = np.argsort(-scores_N, kind="stable")
    taken, hits = np.zeros(gold, bool), np.zeros(count, bool)
    for rank, n in enumerate(order):
        free = np.where(taken, -1.0, overlaps_NM[n])
        best = gold - 1 - int(np.argmax(free[::-1]))  # of equals the last, as COCO's tool takes it
        if free[best] >= min(threshold, 1 - 1e-10):
            taken[best] = hits[rank] = True
    true_positives = np.cumsum(hits)
    recall, precision = true_positives / gold, true_positives / np.arange(1, count + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or a higher one
    at = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    return float(np.append(highest, 0.0)[np.minimum(at, count)].mean())
