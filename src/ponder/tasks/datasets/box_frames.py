"""Gold boxes in pixels of their picture, from whichever form and frame a file has them in."""

from __future__ import annotations

from typing import Any, Literal, get_args

from ponder.errors import TaskError, UnknownName
from ponder.verify.vision.geometry import InvalidGeometry, Size, parse_numbers

BoxFormat = Literal["xyxy", "xywh"]  # two corners; or the upper left corner, width and height
BoxFrame = Literal["pixels", "thousandths", "fractions"]

_UNITS = {"thousandths": 1000.0, "fractions": 1.0}
_SLACK_PIXELS = 1.0  # files round; what is further outside is in another frame


def check_box_settings(box_format: str, box_frame: str) -> None:
    if box_format not in get_args(BoxFormat):
        raise UnknownName("box_format", box_format, get_args(BoxFormat))
    if box_frame not in get_args(BoxFrame):
        raise UnknownName("box_frame", box_frame, get_args(BoxFrame))


def pixel_box(value: Any, size: Size, box_format: BoxFormat = "xyxy", box_frame: BoxFrame = "pixels") -> list[float]:
    """The box as [x1, y1, x2, y2] in pixels of a picture of this width and height."""
    try:
        x1, y1, x2, y2 = parse_numbers(value, 4)
    except InvalidGeometry as why:
        raise TaskError(f"the box is {value!r:.60}: {why}") from None
    if box_format == "xywh":
        x2, y2 = x1 + x2, y1 + y2
    width, height = size
    if box_frame != "pixels":
        unit = _UNITS[box_frame]
        x1, y1, x2, y2 = x1 * width / unit, y1 * height / unit, x2 * width / unit, y2 * height / unit
    if not (x1 < x2 and y1 < y2):
        raise TaskError(f"the box {value} is empty or inside out as {box_format}; box_format is xyxy or xywh")
    if min(x1, y1) < -_SLACK_PIXELS or x2 > width + _SLACK_PIXELS or y2 > height + _SLACK_PIXELS:
        raise TaskError(
            f"the box {value} leaves its picture of {width} x {height} pixels as {box_format} in {box_frame}: it is in"
            " another frame; name it with box_frame=pixels, thousandths or fractions, and box_format=xyxy or xywh"
        )
    if box_frame == "pixels" and x2 <= 1 and y2 <= 1 and width > 1 and height > 1:
        raise TaskError(
            f"the box {value} lies within one pixel: if these are shares of the picture, give box_frame=fractions"
        )
    clipped = max(0.0, x1), max(0.0, y1), min(float(width), x2), min(float(height), y2)
    if not (clipped[0] < clipped[2] and clipped[1] < clipped[3]):
        raise TaskError(f"the box {value} has no pixel inside its picture of {width} x {height} pixels")
    return [_short(number) for number in clipped]


def _short(number: float) -> float:
    """To hundredths, as COCO writes them; a whole number is one."""
    rounded = round(number, 2)
    return int(rounded) if rounded.is_integer() else rounded
