"""Masks from a box and points: a flood fill against one pixel by pixel, and the verifier that grades by it."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pytest

from fakes import run_async
from ponder.errors import UsageError
from ponder.pictures.message_parts import image_part, text_part
from ponder.pictures.picture import Picture
from ponder.tasks.vision.scene import LOOKS, Scene, Shape, encode_mask, render_scene, shape_mask
from ponder.types import Problem, Step, prompt_trace
from ponder.verify.vision.segmenter import FloodFill, SegmentedMaskIoU

RNG = np.random.default_rng(0)


def fill_by_hand(pixels, box, points, tolerance):
    """A queue of pixels, each with its four neighbours."""
    mask = np.zeros(pixels.shape[:2], bool)
    for x, y in points:
        if not (box[0] <= x < box[2] and box[1] <= y < box[3]):
            continue
        seen, queue = {(y, x)}, deque([(y, x)])
        while queue:
            row, column = queue.popleft()
            mask[row, column] = True
            for r, c in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
                inside = box[1] <= r < box[3] and box[0] <= c < box[2] and (r, c) not in seen
                if inside and np.abs(pixels[r, c].astype(int) - pixels[y, x]).max() <= tolerance:
                    seen.add((r, c))
                    queue.append((r, c))
    return mask


@pytest.mark.parametrize("tolerance", [0, 60])
def test_flood_fill_equals_one_pixel_by_pixel(tolerance):
    for _ in range(30):
        pixels = (RNG.integers(0, 3, (14, 17, 1)) * 50).repeat(3, 2).astype(np.uint8)
        x1, y1 = RNG.integers(0, 8, 2)
        box = (int(x1), int(y1), int(x1 + RNG.integers(2, 9)), int(y1 + RNG.integers(2, 6)))
        points = [(int(RNG.integers(0, 17)), int(RNG.integers(0, 14))) for _ in range(2)]
        filled = FloodFill(tolerance)(Picture.from_pixels(pixels), box, points)
        assert (filled == fill_by_hand(pixels, box, points, tolerance)).all()


def a_trace(text, shown=True):
    shape = Shape(LOOKS[0], 10, 20, 21)
    scene = Scene(64, (shape, Shape(LOOKS[4], 40, 20, 15)))
    parts = [image_part(render_scene(scene))] if shown else []
    gold = {"mask": encode_mask(shape_mask(shape, 64)), "size": [64, 64]}
    trace = prompt_trace(Problem("p", ({"role": "user", "content": [*parts, text_part("?")]},), gold), np.array([1]))
    trace.add(Step(0, text, np.array([2], np.int32)))
    return trace


def said(box, first, second):
    return f"<think>a</think><answer>{json.dumps({'bbox': box, 'points_1': first, 'points_2': second})}</answer>"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (said([10, 20, 31, 41], [18, 30], [22, 30]), 1.0),
        (said([0, 0, 64, 64], [18, 30], [22, 30]), 1.0),  # the other shape is of another colour, and apart
        (said([10, 20, 31, 41], [45, 30], [46, 30]), 0.0),  # points outside the box
        (said([32, 0, 64, 64], [45, 27], [46, 27]), 0.0),  # the other shape
        (said([31, 41, 10, 20], [18, 30], [22, 30]), 0.0),
        (said([10, 20, 31, 41], [18, 30], [90, 30]), 0.0),
        ("<answer>[10, 20, 31, 41]</answer>", 0.0),
        ("no idea", 0.0),
    ],
)
def test_overlap_of_the_segmented_mask(text, value):
    (score,) = run_async(SegmentedMaskIoU()(a_trace(text), [1]))
    assert score.value == value, score.reason


def test_half_a_box_gives_half_a_mask():
    (score,) = run_async(SegmentedMaskIoU()(a_trace(said([10, 20, 31, 31], [18, 30], [22, 30])), [1]))
    assert 0.4 < score.value < 0.65


def test_problem_without_a_picture_is_undecided():
    (score,) = run_async(SegmentedMaskIoU()(a_trace("x", shown=False), [1]))
    assert score.value is None and "no picture" in score.reason
    assert SegmentedMaskIoU().grade("x", {"mask": []}).value is None


def test_tolerance_is_checked():
    with pytest.raises(UsageError, match="0 to 255"):
        FloodFill(256)
