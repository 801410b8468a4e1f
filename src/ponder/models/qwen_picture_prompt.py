"""A picture in the prompt of Qwen2.5-VL: resized to whole tokens at its own shape, and one run of ids below 0."""

from __future__ import annotations

import math

from ponder.errors import UsageError
from ponder.nets.picture_table import table_for
from ponder.nets.qwen_vision_config import QwenVisionConfig
from ponder.pictures.picture import Picture
from ponder.pictures.resize import resize
from ponder.types import Ids

IMAGE_TEXT, START_TEXT, END_TEXT = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"
MAX_ASPECT = 200  # of the longer side to the shorter one


def fit_to_tokens(width: int, height: int, vision: QwenVisionConfig) -> tuple[int, int]:
    """The size of whole tokens nearest to the picture's own whose pixels lie within the tower's bounds."""
    unit, pixels = vision.unit, width * height
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise UsageError(
            f"the picture has {width} x {height} pixels; one side may be at most {MAX_ASPECT} times the other"
        )
    across, down = round(width / unit) * unit, round(height / unit) * unit
    if across * down > vision.max_pixels:
        scale = math.sqrt(pixels / vision.max_pixels)
        across, down = (max(unit, math.floor(side / scale / unit) * unit) for side in (width, height))
    elif across * down < vision.min_pixels:
        scale = math.sqrt(vision.min_pixels / pixels)
        across, down = (math.ceil(side * scale / unit) * unit for side in (width, height))
    return across, down


def encode_picture(picture: Picture, vision: QwenVisionConfig) -> Ids:
    """The ids of a picture's places."""
    width, height = fit_to_tokens(*picture.size, vision)
    fitted = resize(picture, width, height, "bicubic")
    return table_for(None).add(fitted, (height // vision.unit, width // vision.unit))
