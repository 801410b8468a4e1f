"""Rewards for locations in an image: box overlap, a point in a mask, mask overlap, detection.

Each is a number from 0 to 1 rather than right or wrong, so validity is checked first: a box that is inverted, outside
the image or not finite is malformed and scores 0, whatever a formula would give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponder.errors import UsageError
from ponder.types import Score
from ponder.verify.answers.structured import InvalidJson, extract_structured, parse_strict_json
from ponder.verify.base import TextVerifier, bad_data
from ponder.verify.vision import geometry
from ponder.verify.vision.assignment import best_assignment
from ponder.verify.vision.geometry import Box, InvalidGeometry, Size
from ponder.verify.vision.gold_fields import gold_field, image_size, parse_gold

Detection = tuple[str, Box, float]  # label, box, score


def _grade_json_answer(text: str, grade: Callable[[Any], Score]) -> Score:
    """Grade the JSON value that a completion gives."""
    extracted = extract_structured(text)
    if extracted.answer is None:
        return Score(0.0, extracted.reason)
    try:
        return grade(parse_strict_json(extracted.answer))
    except (InvalidJson, InvalidGeometry) as why:
        return Score(0.0, f"malformed: {why}")


@dataclass(frozen=True)
class BoxIoU(TextVerifier):
    """IoU of the box given with the gold one; `threshold`: 1 from there on, else 0.

    A box is `[x1, y1, x2, y2]` or `(x1,y1),(x2,y2)`.

    The problem's answer is `{"box": [x1, y1, x2, y2]}`, with `"size": [width, height]` to refuse boxes that leave the
    image. `use_giou`: GIoU scaled to 0 to 1, which tells a near miss from a far one.
    """

    threshold: float | None = None
    use_giou: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise UsageError(f"threshold is {self.threshold}; an overlap lies between 0 and 1")
        if self.use_giou and self.threshold is not None:
            raise UsageError("a threshold on the generalised overlap is not an overlap; leave one of them out")

    @property
    def name(self) -> str:
        return "box_overlap"

    def verify(self, text: str, gold: Any) -> Score:
        image = image_size(gold)
        truth = parse_gold(lambda: geometry.parse_box(gold_field(gold, "box"), image))
        extracted = extract_structured(text)
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        try:
            return self._compare(_parse_box_text(extracted.answer, image), truth)
        except (InvalidJson, InvalidGeometry) as why:
            return Score(0.0, f"malformed: {why}")

    def _compare(self, box: Box, truth: Box) -> Score:
        overlap = geometry.iou(box, truth)
        reason = f"IoU {overlap:.3f}"
        if self.use_giou:
            return Score((geometry.giou(box, truth) + 1) / 2, reason)
        return Score(overlap if self.threshold is None else float(overlap >= self.threshold), reason)


@dataclass(frozen=True)
class BoxSetIoU(TextVerifier):
    """Mean IoU of several boxes, matched one to one with the gold ones so that the sum is largest.

    The problem's answer is `{"boxes": [[x1, y1, x2, y2], ...]}`, with `"size"` as in `BoxIoU`. The mean is over the
    boxes given or the gold ones, whichever are more: a box too many costs as much as one too few.
    """

    max_boxes: int = 100

    def __post_init__(self) -> None:
        if self.max_boxes < 1:
            raise UsageError(f"max_boxes is {self.max_boxes}; it must be at least 1")

    @property
    def name(self) -> str:
        return "box_overlap"

    def verify(self, text: str, gold: Any) -> Score:
        image, boxes = image_size(gold), gold_field(gold, "boxes")
        truth = parse_gold(lambda: _plain_boxes(boxes, image))
        if not truth:
            bad_data("there are no gold boxes")
        return _grade_json_answer(text, lambda value: self._compare(_plain_boxes(value, image), truth))

    def _compare(self, boxes: list[Box], truth: list[Box]) -> Score:
        if len(boxes) > self.max_boxes:
            return Score(0.0, f"{len(boxes)} boxes, more than {self.max_boxes}")
        overlaps_NM = geometry.iou_matrix(boxes, truth)
        mean = sum(overlaps_NM[n, m] for n, m in best_assignment(overlaps_NM)) / max(len(boxes), len(truth))
        return Score(float(mean), f"mean IoU {mean:.3f}, {len(boxes)} boxes for {len(truth)}")


@dataclass(frozen=True)
class PointInMask(TextVerifier):
    """1 where the point given, `[x, y]`, lies in the gold mask.

    The problem's answer is `{"mask": ...}`: a polygon `[[x, y], ...]`, or COCO run lengths, where a point belongs to
    the pixel it falls in. With `"size": [width, height]` a point outside the image is malformed.
    """

    @property
    def name(self) -> str:
        return "point_in_mask"

    def verify(self, text: str, gold: Any) -> Score:
        image, mask = image_size(gold), gold_field(gold, "mask")
        if isinstance(mask, Mapping):
            pixels = parse_gold(lambda: geometry.parse_mask(mask, image))
            image = pixels.shape[1], pixels.shape[0]
        else:
            corners = parse_gold(lambda: geometry.parse_polygon(mask))

        def grade(value: Any) -> Score:
            x, y = geometry.parse_numbers(value, 2)
            if image and not (0 <= x < image[0] and 0 <= y < image[1]):
                raise InvalidGeometry("the point leaves the image")
            if isinstance(mask, Mapping):
                hit = bool(pixels[int(y), int(x)])
            else:
                hit = bool(geometry.points_in_polygon(np.array([x, y]), corners))
            return Score(1.0, "right") if hit else Score(0.0, "wrong: outside the mask")

        return _grade_json_answer(text, grade)


@dataclass(frozen=True)
class MaskIoU(TextVerifier):
    """IoU in pixels of the mask given with the gold one, each a polygon or COCO run lengths.

    The problem's answer is `{"mask": ..., "size": [width, height]}`; run lengths bring their own size.
    """

    @property
    def name(self) -> str:
        return "mask_overlap"

    def verify(self, text: str, gold: Any) -> Score:
        truth = parse_gold(lambda: geometry.parse_mask(gold_field(gold, "mask"), image_size(gold)))
        if not truth.any():
            bad_data("the gold mask is empty")
        image = truth.shape[1], truth.shape[0]

        def grade(value: Any) -> Score:
            overlap = geometry.mask_iou(geometry.parse_mask(value, image), truth)
            return Score(overlap, f"IoU {overlap:.3f}")

        return _grade_json_answer(text, grade)


@dataclass(frozen=True)
class DetectionAP(TextVerifier):
    """Mean average precision of detected boxes, as COCO has it (IoU 0.50:0.05:0.95, 101 recalls), in one image.

    The problem's answer is `{"boxes": [{"box": [x1, y1, x2, y2], "label": "cat"}, ...]}`, with `"size"` as in
    `BoxIoU`. The completion lists the same, each with a `"score"` if it likes (else the first counts most).

    Two holes of the measure are closed: a class that is not in the image counts as one with precision 0 (COCO leaves it
    out, so that naming every class is free), and more than `max_boxes` boxes earn nothing (those after the last hit are
    free).
    """

    max_boxes: int = 100
    thresholds: tuple[float, ...] = geometry.COCO_IOU_THRESHOLDS

    def __post_init__(self) -> None:
        if self.max_boxes < 1 or not self.thresholds or not all(0 < t <= 1 for t in self.thresholds):
            raise UsageError(
                f"max_boxes is {self.max_boxes} and thresholds are {self.thresholds}; give at least one in (0, 1]"
            )

    @property
    def name(self) -> str:
        return "detection"

    def verify(self, text: str, gold: Any) -> Score:
        image, boxes = image_size(gold), gold_field(gold, "boxes")
        truth = parse_gold(lambda: _boxes(boxes, image))
        return _grade_json_answer(text, lambda value: self._compare(value, image, truth))

    def _compare(self, value: Any, image: Size | None, truth: list[Detection]) -> Score:
        detections = _boxes(value, image)
        if len(detections) > self.max_boxes:
            return Score(0.0, f"{len(detections)} boxes, more than {self.max_boxes}")
        labels = {label for label, _, _ in truth} | {label for label, _, _ in detections}
        if not labels:
            return Score(1.0, "right: there is nothing")
        mean = sum(self.precision(detections, truth, label) for label in labels) / len(labels)
        return Score(mean, f"mAP {mean:.3f} over {len(labels)} classes, {len(detections)} boxes for {len(truth)}")

    def precision(self, detections: list[Detection], truth: list[Detection], label: str) -> float:
        """The mean AP of one class over the thresholds."""
        class_detections = [(box, score) for name, box, score in detections if name == label]
        class_truth = [box for name, box, _ in truth if name == label]
        if not class_detections or not class_truth:
            return 0.0
        scores = np.array([score for _, score in class_detections])
        overlaps = np.array([[geometry.iou(box, gold) for gold in class_truth] for box, _ in class_detections])
        return float(np.mean([geometry.average_precision(scores, overlaps, t) for t in self.thresholds]))


def _parse_box_text(answer: str, image: Size | None) -> Box:
    corners = geometry.parse_corner_pairs(answer) if answer.startswith("(") else parse_strict_json(answer)
    return geometry.parse_box(corners, image)


def _plain_boxes(value: Any, image: Size | None) -> list[Box]:
    """The boxes of a list of boxes without labels."""
    if not isinstance(value, list | tuple):
        raise InvalidGeometry("not a list of boxes")
    return [geometry.parse_box(box, image) for box in value]


def _boxes(value: Any, image: Size | None) -> list[Detection]:
    """The detections of a list. Without scores, earlier boxes rank higher."""
    if not isinstance(value, list | tuple):
        raise InvalidGeometry("not a list of boxes")
    detections: list[Detection] = []
    for n, item in enumerate(value):
        if not isinstance(item, Mapping) or not isinstance(item.get("label"), str):
            raise InvalidGeometry("a detection is a box with a label")
        (score,) = geometry.parse_numbers([item["score"]], 1) if "score" in item else (-float(n),)
        detections.append(
            (" ".join(item["label"].casefold().split()), geometry.parse_box(item.get("box"), image), score)
        )
    if len({"score" in item for item in value}) > 1:
        raise InvalidGeometry("some boxes have a score and some have none")
    return detections
