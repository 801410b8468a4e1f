"""Masks from a box and points, as Seg-Zero has them: the policy says where an object is, a segmenter finds its pixels.

SAM2 is such a segmenter for photographs. `FloodFill` is an exact one for pictures with areas of one colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ponder.errors import UsageError
from ponder.pictures.message_parts import content_pictures
from ponder.pictures.picture import Picture
from ponder.types import Problem, Score, Trace
from ponder.verify.answers.structured import InvalidJson, extract_structured, parse_strict_json
from ponder.verify.base import BadProblemData, TextVerifier, bad_data, grade_or_undecided
from ponder.verify.vision import geometry
from ponder.verify.vision.geometry import Box, InvalidGeometry, Mask
from ponder.verify.vision.gold_fields import gold_field, parse_gold

Points = Sequence[tuple[float, float]]


class Segmenter(Protocol):
    """Finds the pixels of the object in a box that holds these points; a frozen dataclass, for jobs to name it."""

    def __call__(self, picture: Picture, box: Box, points: Points) -> Mask: ...


@dataclass(frozen=True)
class FloodFill:
    """The pixels in the box that are connected with a point and have its colour.

    `tolerance`: how far each of red, green and blue may be from the point's, of 255.
    """

    tolerance: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance <= 255:
            raise UsageError(f"tolerance is {self.tolerance}; it is 0 to 255")

    def __call__(self, picture: Picture, box: Box, points: Points) -> Mask:
        from scipy.ndimage import label

        mask = np.zeros((picture.height, picture.width), bool)
        x1, y1 = max(0, math.floor(box[0])), max(0, math.floor(box[1]))
        x2, y2 = min(picture.width, math.ceil(box[2])), min(picture.height, math.ceil(box[3]))
        inside = picture.pixels[y1:y2, x1:x2].astype(int)
        for x, y in points:
            column, row = int(x) - x1, int(y) - y1
            if not (0 <= column < x2 - x1 and 0 <= row < y2 - y1):
                continue
            alike = (np.abs(inside - inside[row, column]) <= self.tolerance).all(-1)
            regions, _ = label(alike)
            mask[y1:y2, x1:x2] |= regions == regions[row, column]
        return mask


@dataclass(frozen=True)
class SegmentedMaskIoU(TextVerifier):
    """IoU in pixels of the gold mask with the one that a segmenter makes of the box and points given.

    The answer is Seg-Zero's: `<answer>{"bbox": [x1, y1, x2, y2], "points_1": [x, y], "points_2": [x, y]}</answer>`. The
    problem's answer is `{"mask": ...}`, run lengths or a polygon, and its last picture is the one that is segmented.
    """

    segmenter: Segmenter = field(default_factory=FloodFill)

    @property
    def name(self) -> str:
        return "mask_overlap"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        def grade(text: str) -> Score:
            return self._compare(text, _last_picture(trace.problem), trace.problem.answer)

        return [grade_or_undecided(lambda step=step: grade(trace.text(step))) for step in steps]  # type: ignore[misc]

    def verify(self, text: str, gold: Any) -> Score:
        """Of a gold answer that holds the `Picture` under "picture"."""
        picture = gold_field(gold, "picture")
        if not isinstance(picture, Picture):
            bad_data("the picture is no Picture")
        return self._compare(text, picture, gold)

    def _compare(self, text: str, picture: Picture, gold: Mapping[str, Any]) -> Score:
        truth = parse_gold(lambda: geometry.parse_mask(gold_field(gold, "mask"), picture.size))
        extracted = extract_structured(text, ("tag",))
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        try:
            box, points = parse_box_and_points(parse_strict_json(extracted.answer), picture.size)
        except (InvalidJson, InvalidGeometry) as why:
            return Score(0.0, f"malformed: {why}")
        overlap = geometry.mask_iou(self.segmenter(picture, box, points), truth)
        return Score(overlap, f"IoU {overlap:.3f} of the mask")


def parse_box_and_points(value: Any, size: geometry.Size) -> tuple[Box, list[tuple[float, float]]]:
    """Of an answer in Seg-Zero's form."""
    if not isinstance(value, dict) or value.keys() != {"bbox", "points_1", "points_2"}:
        raise InvalidGeometry("not an object with bbox, points_1 and points_2")
    box = geometry.parse_box(value["bbox"], size)
    points = []
    for key in ("points_1", "points_2"):
        x, y = geometry.parse_numbers(value[key], 2)
        if not (0 <= x < size[0] and 0 <= y < size[1]):
            raise InvalidGeometry("a point leaves the image")
        points.append((x, y))
    return box, points


def _last_picture(problem: Problem) -> Picture:
    shown = [picture for message in problem.messages for picture in content_pictures(message["content"])]
    if not shown:
        raise BadProblemData("the problem shows no picture")
    return shown[-1]
