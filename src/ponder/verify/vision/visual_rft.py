"""The rewards of Visual-RFT (Liu et al. 2025, arXiv 2503.01785): detection, class, and grounding.

The authors' code first tries to prove an answer equal to the gold one with math-verify; that step is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ponder.verify.answers.structured import parse_strict_json
from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.vision import geometry
from ponder.verify.vision.geometry import Box, InvalidGeometry, Size
from ponder.verify.vision.gold_fields import gold_field, image_size, parse_gold
from ponder.verify.vision.published_reward import Parts, PublishedReward, first_answer, format_reward, literal_format

IOU_THRESHOLD = 0.5  # a box is matched above it
MAX_BOXES = 100


class _Detected(NamedTuple):
    box: Box
    confidence: float


class _BoxesInImage(NamedTuple):
    boxes: list[Box]
    size: Size | None


@dataclass(frozen=True)
class VisualRFTDetection(PublishedReward):
    """IoU + confidence + format, at most 3, for `[{'Position': [x1, y1, x2, y2], 'Confidence': 0.9}, ...]`.

    The problem's answer is `{"boxes": [[x1, y1, x2, y2], ...]}`, with `"size"` as in `BoxIoU`. Boxes are matched
    greedily, the most confident first, where IoU > 0.5. IoU: the sum over matches by the number of gold or given boxes,
    whichever is larger (the code's second version). Confidence: the mean of c for a matched box and 1 - c for another.

    Closed: without any match the confidence earns nothing, or a box with confidence 0 anywhere would earn all of it;
    a confidence outside 0 to 1 is malformed.
    """

    @property
    def name(self) -> str:
        return "visual_rft_detection"

    def parse_gold(self, gold: Any) -> _BoxesInImage:
        size, boxes = image_size(gold), gold_field(gold, "boxes")
        if not isinstance(boxes, Sequence) or not boxes:
            bad_data("there are no gold boxes")
        return _BoxesInImage([parse_gold(partial(geometry.parse_box, box, size)) for box in boxes], size)

    def parts(self, text: str, answer: str, truth: _BoxesInImage) -> Parts:
        items = parse_strict_json(answer.replace("'", '"'))
        if not isinstance(items, list) or not 1 <= len(items) <= MAX_BOXES:
            raise InvalidGeometry(f"not a list of 1 to {MAX_BOXES} boxes")
        overlaps = _match(truth.boxes, _without_repeats([_parse_detected(item, truth.size) for item in items]))
        matched = any(overlap for overlap, _ in overlaps)
        confidence = _confidence(overlaps) if matched else 0.0
        return {"IoU": _mean_iou(overlaps, len(truth.boxes)), "confidence": confidence, "format": format_reward(text)}

    def faithful_parts(self, text: str, truth: _BoxesInImage) -> Parts:
        overlaps = self._faithful_overlaps(text, truth.boxes)
        return {
            "IoU": min(1.0, _mean_iou(overlaps, len(truth.boxes))) if overlaps else 0.0,
            "confidence": min(1.0, max(0.0, _confidence(overlaps))) if overlaps else 0.0,
            "format": literal_format(text),
        }

    def _faithful_overlaps(self, text: str, truth: list[Box]) -> list[tuple[float, float]]:
        answer = re.search(r"<answer>(.*?)</answer>", text)  # within one line, as there
        written = (answer[1] if answer else text).strip()
        written = written.replace("[[", "[").replace("]]", "]").replace("\n", "")
        if not written.endswith("]"):  # cut off: without the last, unfinished item
            written = written.rsplit("},", 1)[0] + "}]"
        try:
            items = json.loads(written.replace("'", '"'))
            unique = _without_repeats([_Detected(tuple(item["Position"]), 0 + item["Confidence"]) for item in items])
            return _match(truth, unique)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            return []


@dataclass(frozen=True)
class VisualRFTClass(PublishedReward):
    """Accuracy + format, at most 2, for the name of a class. The problem's answer is that name.

    Case, blanks and underscores do not count. Closed: the names must be equal, where the authors' code takes any answer
    that contains the gold name or that it contains, so an empty one too.
    """

    @property
    def name(self) -> str:
        return "visual_rft_class"

    def parse_gold(self, gold: Any) -> str:
        if not isinstance(gold, str) or not _plain(gold):
            bad_data(f"the gold answer {repr_for_reason(gold)} is not a name")
        return _plain(gold)

    def parts(self, text: str, answer: str, truth: str) -> Parts:
        return {"accuracy": float(_plain(answer) == truth), "format": format_reward(text)}

    def faithful_parts(self, text: str, truth: str) -> Parts:
        answer = first_answer(text)
        given = _plain(text if answer is None else answer)
        return {"accuracy": float(truth in given or given in truth), "format": literal_format(text)}


@dataclass(frozen=True)
class VisualRFTGrounding(PublishedReward):
    """GIoU + 1 and format, at most 3, for a box `(x1,y1),(x2,y2)`. Both boxes count in thousandths of the image.

    The problem's answer is `{"box": [x1, y1, x2, y2]}`. Closed: a box inside out or outside 0 to 1000 is malformed; the
    formula pays up to 26 for one.
    """

    @property
    def name(self) -> str:
        return "visual_rft_grounding"

    def parse_gold(self, gold: Any) -> Box:
        return parse_gold(lambda: geometry.parse_box(gold_field(gold, "box"), (1000, 1000)))

    def parts(self, text: str, answer: str, truth: Box) -> Parts:
        box = geometry.parse_box(geometry.parse_corner_pairs(answer), (1000, 1000))
        return {"GIoU": geometry.giou(box, truth) + 1, "format": format_reward(text)}

    def faithful_parts(self, text: str, truth: Box) -> Parts:
        answer = first_answer(text)
        pairs = re.findall(_CORNERS, text if answer is None else answer)
        corners = [pair[:2] for pair in pairs] + [
            pair[2:] for pair in pairs
        ]  # of several boxes, a mix of the first two
        overlap = _unguarded_giou(truth, [int(n) for n in (*corners[0], *corners[1])]) + 1 if pairs else 0.0
        return {"GIoU": overlap, "format": literal_format(text)}


_CORNERS = r"\(\s*(\d{1,300})\s*,\s*(\d{1,300})\s*\)\s*,\s*\(\s*(\d{1,300})\s*,\s*(\d{1,300})\s*\)"


def _parse_detected(item: Any, size: Size | None) -> _Detected:
    if not isinstance(item, dict) or item.keys() != {"Position", "Confidence"}:
        raise InvalidGeometry("an item is not a Position with a Confidence")
    (confidence,) = geometry.parse_numbers([item["Confidence"]], 1)
    if not 0 <= confidence <= 1:
        raise InvalidGeometry("a confidence lies between 0 and 1")
    return _Detected(geometry.parse_box(item["Position"], size), confidence)


def _without_repeats(detected: list[_Detected]) -> list[_Detected]:
    """The first of each box."""
    return list({item.box: item for item in reversed(detected)}.values())[::-1]


def _match(truth: list[Box], detected: list[_Detected]) -> list[tuple[float, float]]:
    """IoU with its match (0: none) and confidence of each box, the most confident first."""
    free, out = list(truth), []
    for box, confidence in sorted(detected, key=lambda item: item.confidence, reverse=True):
        best = max(free, key=lambda gold: _unguarded_iou(gold, box), default=None)
        overlap = 0.0 if best is None else _unguarded_iou(best, box)
        if best is not None and overlap > IOU_THRESHOLD:
            free.remove(best)
        else:
            overlap = 0.0
        out.append((overlap, confidence))
    return out


def _mean_iou(overlaps: list[tuple[float, float]], gold: int) -> float:
    return sum(overlap for overlap, _ in overlaps) / max(gold, len(overlaps))


def _confidence(overlaps: list[tuple[float, float]]) -> float:
    return sum(c if overlap else 1 - c for overlap, c in overlaps) / len(overlaps)


def _unguarded_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """IoU of any four numbers, as the authors' code has it."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return 0.0
    return wide * high / (_area(a) + _area(b) - wide * high)


def _unguarded_giou(a: Sequence[float], b: Sequence[float]) -> float:
    """GIoU of any four numbers, as the authors' code has it."""
    shared = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    union = _area(a) + _area(b) - shared
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    overlap = shared / union if union > 0 else 0.0
    return overlap - (hull - union) / hull if hull > 0 else overlap


def _area(box: Sequence[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _plain(name: str) -> str:
    return re.sub(r"[\s_]", "", name).lower()
