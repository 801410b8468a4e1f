"""The task `boxes`: gold boxes recomputed from the question's words, pixel by pixel."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ponder.errors import UsageError
from ponder.tasks import Boxes
from ponder.tasks.generated.boxes import KINDS

NUMBER = re.compile(r"[0-9]+")


def numbers(text):
    return [int(n) for n in NUMBER.findall(text)]


def painted(width, height, x1, y1, x2, y2):
    """The pixels [height, width] of an image that lie in a box."""
    pixels = np.zeros((height, width), bool)
    pixels[y1:y2, x1:x2] = True
    return pixels


def resized(pixels, width, height):
    """Nearest-neighbour resize: each row and column of the new image shows one of the old."""
    rows = [int((y + 0.5) * pixels.shape[0] / height) for y in range(height)]
    columns = [int((x + 0.5) * pixels.shape[1] / width) for x in range(width)]
    return pixels[rows][:, columns]


def padded(pixels, pad):
    """Each pixel of the image that has a marked one at most `pad` away in x and in y."""
    height, width = pixels.shape
    wide = np.pad(pixels, pad)
    across = np.any([wide[:, i : i + width] for i in range(2 * pad + 1)], axis=0)
    return np.any([across[i : i + height] for i in range(2 * pad + 1)], axis=0)


def hull(pixels):
    ys, xs = np.nonzero(pixels)
    return [int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1]


def solve_by_pixels(question):
    """The box and the image's size at the end, read from the question as a person would."""
    start, *lines = question.split("\n")
    image, start = start.split(" pixels high. ", 1)
    width, height = numbers(image)
    box = numbers(start.split(". Boxes are")[0])
    if "corner" in start:
        box = [box[0], box[1], box[0] + box[2], box[1] + box[3]]
    pixels = painted(width, height, *box)
    for line in (line[3:] for line in lines if re.match(r"[0-9]\. ", line)):
        n = numbers(line)
        if "smallest" in line:
            both = pixels | painted(width, height, *n)
            pixels = painted(width, height, *hull(both))
        elif "intersection" in line:
            pixels = pixels & painted(width, height, *n)
        elif "outwards" in line:
            pixels = padded(pixels, n[0])
        else:
            width, height = n
            pixels = resized(pixels, width, height)
    return {"box": hull(pixels), "size": [width, height]}


@pytest.mark.parametrize("settings", [*({"steps": 1, "kinds": (kind,)} for kind in KINDS), {"steps": 3}, {"steps": 5}])
def test_gold_equals_box_counted_in_pixels(settings):
    problems = Boxes(largest=80, **settings).train[:60]
    for problem in problems:
        assert solve_by_pixels(problem.bare_question) == problem.answer, problem.question
    assert len({str(p.answer) for p in problems}) > 30


def test_drawn_boxes_lie_in_their_image_at_every_level():
    for level in range(1, len(Boxes.LEVELS) + 1):
        for problem in Boxes(level=level).train[:300]:
            (x1, y1, x2, y2), (width, height) = problem.answer["box"], problem.answer["size"]
            assert 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height


def test_every_kind_comes_once_in_a_problem():
    for problem in Boxes(steps=4).train[:50]:
        kinds = problem.tags["kinds"]
        assert len(set(kinds)) == len(kinds) == 4 and ("corner-size" not in kinds or kinds[0] == "corner-size")
    seen = {kind for problem in Boxes(steps=1).train[:80] for kind in problem.tags["kinds"]}
    assert seen == set(KINDS)


def test_reward_is_iou_and_with_a_threshold_right_or_wrong():
    gold = {"box": [0, 0, 10, 10], "size": [20, 20]}
    half = "<answer>[0, 0, 10, 5]</answer>"
    assert Boxes().verifier.grade(half, gold).value == 0.5
    assert Boxes(threshold=0.5).verifier.grade(half, gold).value == 1.0
    assert Boxes(threshold=0.6).verifier.grade(half, gold).value == 0.0
    assert Boxes().verifier.grade("<answer>[0, 0, 10, 25]</answer>", gold).value == 0.0  # leaves the image


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"steps": 2, "kinds": ("pad",)}, "each kind comes once"), ({"kinds": ("crop",)}, "crop"), ({"steps": 0}, "steps"),
     ({"largest": 20}, "at least 40"), ({"largest": 5000}, "at most 1200"), ({"threshold": 1.5}, "threshold is 1.5")],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Boxes(**settings)
