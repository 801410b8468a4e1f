"""The rewards of Seg-Zero (Liu et al. 2025, arXiv 2503.06520) and VisionReasoner (Liu et al. 2025, arXiv 2505.12081).

A model gives a box and points, from which another one makes the mask; the reward is for box and points alone. Areas
count both edges (x2 - x1 + 1), as in the authors' code.

M: objects given, N: gold objects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ponder.verify.answers.structured import parse_strict_json
from ponder.verify.base import bad_data
from ponder.verify.vision import geometry
from ponder.verify.vision.assignment import best_assignment
from ponder.verify.vision.geometry import Array, Box, InvalidGeometry, Size
from ponder.verify.vision.gold_fields import gold_field, image_size, parse_gold
from ponder.verify.vision.published_reward import Parts, PublishedReward, first_answer, format_reward, literal_format

Point = tuple[float, float]

IOU_THRESHOLD = 0.5
BOX_PIXELS = 10  # mean distance of the edges
SEG_ZERO_POINT_PIXELS, VISION_REASONER_POINT_PIXELS = 100, 30
MAX_OBJECTS = 120
_FAILURES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class _BoxWithPoints(NamedTuple):
    box: Box
    points: tuple[Point, Point]
    size: Size | None


@dataclass(frozen=True)
class SegZero(PublishedReward):
    """Think format + answer format + [IoU > 0.5] + [box within 10 pixels] + [points within 100], at most 5.

    The answer is `{"bbox": [x1, y1, x2, y2], "points_1": [x, y], "points_2": [x, y]}`; the problem's is `{"box": ...,
    "points": [[x, y], [x, y]]}`, with `"size"` as in `BoxIoU`. Points must lie in the given box and are paired with the
    gold ones as is nearer.

    Closed: the authors' code reads the first braces of a text, so that JSON in the thinking earns all 5.
    """

    @property
    def name(self) -> str:
        return "seg_zero"

    def parse_gold(self, gold: Any) -> _BoxWithPoints:
        size, points = image_size(gold), gold_field(gold, "points")
        if not isinstance(points, Sequence) or len(points) != 2:
            bad_data("the gold answer needs two points")
        box = parse_gold(lambda: geometry.parse_box(gold_field(gold, "box"), size))
        first, second = (parse_gold(partial(_parse_point, p, size)) for p in points)
        return _BoxWithPoints(box, (first, second), size)

    def parts(self, text: str, answer: str, truth: _BoxWithPoints) -> Parts:
        value = parse_strict_json(answer)
        if not isinstance(value, dict) or value.keys() != {"bbox", "points_1", "points_2"}:
            raise InvalidGeometry("not an object with bbox, points_1 and points_2")
        box = geometry.parse_box(value["bbox"], truth.size)
        points = (_parse_point(value["points_1"], truth.size), _parse_point(value["points_2"], truth.size))
        return {"format": format_reward(text), "answer": 1.0, **_box_and_points(box, points, truth)}

    def faithful_parts(self, text: str, truth: _BoxWithPoints) -> Parts:
        parts = {"format": literal_format(text), "answer": 0.0, "IoU": 0.0, "L1": 0.0, "points": 0.0}
        braces = re.search(r"{[^}]+}", text)
        try:
            value = json.loads(braces[0]) if braces else {}
            box = next(value[key] for key in value if "bbox" in key.lower())
            points = [value[key] for key in value if "point" in key.lower()][:2]
            parts["answer"] = float(len(box) == 4 and len(points) == 2 and all(len(p) == 2 for p in points))
            if len(box) == 4:
                parts["IoU"] = float(_iou(box, truth.box) > IOU_THRESHOLD)
                parts["L1"] = float(_box_distance(box, truth.box) < BOX_PIXELS)
            whole = [(int(p[0]), int(p[1])) for p in points]
            parts["points"] = float(len(whole) == 2 and _near((whole[0], whole[1]), box, truth.points))
        except (StopIteration, *_FAILURES):
            pass  # what was computed before the failure counts
        return parts


class _Object(NamedTuple):
    box: Box
    point: Point


class _ObjectsInImage(NamedTuple):
    objects: list[_Object]
    size: Size | None


@dataclass(frozen=True)
class VisionReasoner(PublishedReward):
    """Think format + answer format + accuracy + no repeated sentences, at most 1 + 2 + 3 + 1.

    The answer is `[{"bbox_2d": [x1, y1, x2, y2], "point_2d": [x, y]}, ...]`; the problem's is `{"objects": [{"box":
    ..., "point": ...}, ...]}`, with `"size"` as in `BoxIoU`. Accuracy: [IoU > 0.5] + [box within 10 pixels] + [point
    within 30 and in its own box] of each pair, matched so that the sum is largest, by the number of gold or given
    objects, whichever is larger.

    Closed: `[]`, numbers that are none and more than 120 objects earn nothing; the authors' code pays for their form.
    """

    @property
    def name(self) -> str:
        return "vision_reasoner"

    def parse_gold(self, gold: Any) -> _ObjectsInImage:
        size, items = image_size(gold), gold_field(gold, "objects")
        if not isinstance(items, Sequence) or not items:
            bad_data("there are no gold objects")
        objects = [parse_gold(partial(_parse_object, item, "box", "point", size)) for item in items]
        return _ObjectsInImage(objects[:MAX_OBJECTS], size)

    def parts(self, text: str, answer: str, truth: _ObjectsInImage) -> Parts:
        items = parse_strict_json(answer)
        if not isinstance(items, list) or not 1 <= len(items) <= MAX_OBJECTS:
            raise InvalidGeometry(f"not a list of 1 to {MAX_OBJECTS} objects")
        objects = [_parse_object(item, "bbox_2d", "point_2d", truth.size) for item in items]
        accuracy = _match_objects(
            np.array([o.box for o in objects]), np.array([o.point for o in objects]), truth.objects
        )
        return {"format": format_reward(text), "answer": 2.0, "accuracy": accuracy, "no repeats": _no_repeats(text)}

    def faithful_parts(self, text: str, truth: _ObjectsInImage) -> Parts:
        answer, form, accuracy = first_answer(text), 0.0, 0.0
        try:
            items = json.loads(answer or "")
            for item in items:
                box, point = item.get("bbox_2d"), item.get("point_2d")
                sound = (isinstance(box, list) and len(box) == 4) + (isinstance(point, list) and len(point) == 2)
                form += sound / len(items)
            boxes = np.array([item["bbox_2d"] for item in items[:MAX_OBJECTS]], float)
            points = np.array([item["point_2d"] for item in items[:MAX_OBJECTS]], float)
            accuracy = _match_objects(boxes, points, truth.objects)
        except _FAILURES:
            pass  # what was computed before the failure counts
        return {"format": literal_format(text), "answer": form, "accuracy": accuracy, "no repeats": _no_repeats(text)}


def _box_and_points(box: Box, points: tuple[Point, Point], truth: _BoxWithPoints) -> Parts:
    return {
        "IoU": float(_iou(box, truth.box) > IOU_THRESHOLD),
        "L1": float(_box_distance(box, truth.box) < BOX_PIXELS),
        "points": float(_near(points, box, truth.points)),
    }


def _near(points: tuple[Point, Point], box: Sequence[float], gold: tuple[Point, Point]) -> bool:
    """Whether both points lie in the box, and near the gold ones."""
    straight = math.dist(points[0], gold[0]) + math.dist(points[1], gold[1])
    crossed = math.dist(points[0], gold[1]) + math.dist(points[1], gold[0])
    inside = all(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in points)
    return inside and min(straight, crossed) / 2 < SEG_ZERO_POINT_PIXELS


def _match_objects(boxes_M4: Array, points_M2: Array, truth: list[_Object]) -> float:
    """The mean over objects of what the best match earns."""
    gold_N4, gold_points_N2 = np.array([o.box for o in truth]), np.array([o.point for o in truth])
    overlap_MN = _iou_pixels(boxes_M4[:, None], gold_N4[None])
    distance_MN = np.abs(boxes_M4[:, None] - gold_N4[None]).mean(2)
    point_MN = np.sqrt(((points_M2[:, None] - gold_points_N2[None]) ** 2).sum(2))
    inside_M2 = (points_M2 >= boxes_M4[:, :2]) & (points_M2 <= boxes_M4[:, 2:])
    earned_MN = (overlap_MN > IOU_THRESHOLD).astype(float) + (distance_MN < BOX_PIXELS)
    earned_MN += (point_MN < VISION_REASONER_POINT_PIXELS) & inside_M2.all(1, keepdims=True)
    return float(sum(earned_MN[pair] for pair in best_assignment(earned_MN)) / max(earned_MN.shape))


def _iou_pixels(a: Array, b: Array) -> Array:
    """IoU of boxes [..., 4] in whole pixels: both edges count."""
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    shared = np.maximum(0, high - low + 1).prod(-1)
    areas = [(box[..., 2:] - box[..., :2] + 1).prod(-1) for box in (a, b)]
    with np.errstate(divide="ignore", invalid="ignore"):
        overlap: Array = shared / (areas[0] + areas[1] - shared)
    return overlap


def _iou(a: Sequence[float], b: Sequence[float]) -> float:
    """The same of two boxes; of boxes that only touch, 0, as Seg-Zero has it."""
    if min(a[2], b[2]) <= max(a[0], b[0]) or min(a[3], b[3]) <= max(a[1], b[1]):
        return 0.0
    return float(_iou_pixels(np.array(a, float), np.array(b, float)))


def _box_distance(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 4


def _no_repeats(text: str) -> float:
    """1 unless sentences come again twice or more: at most one repetition is free."""
    sentences = [s for sentence in text.split(".") if (s := sentence.strip())]
    return float(len(sentences) - len(set(sentences)) < 2)


def _parse_point(value: Any, size: Size | None) -> Point:
    x, y = geometry.parse_numbers(value, 2)
    if size and not (0 <= x <= size[0] and 0 <= y <= size[1]):
        raise InvalidGeometry("the point leaves the image")
    return x, y


def _parse_object(item: Any, box: str, point: str, size: Size | None) -> _Object:
    if not isinstance(item, Mapping) or item.keys() != {box, point}:
        raise InvalidGeometry(f"an object is not a {box} with a {point}")
    return _Object(geometry.parse_box(item[box], size), _parse_point(item[point], size))
