"""Tasks about pictures: gold answers against what can be measured in the pixels, as a person would."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest

from ponder.errors import UsageError
from ponder.pictures.message_parts import content_pictures
from ponder.tasks import (
    CountShapes,
    LocateShape,
    LocateShapes,
    OrderShapes,
    PictureMaze,
    PointAtShape,
    ReadClock,
    ReferToShape,
    SameOrDifferent,
    SegmentShape,
)
from ponder.tasks.vision.scene import COLORS, KINDS, LOOKS, Scene, Shape, draw_scene, encode_mask, shape_mask
from ponder.tasks.vision.segment_shape import cover_cells
from ponder.verify.vision.geometry import decode_rle

PROBLEMS = 40


def pixels_of(problem):
    (picture,) = content_pictures(problem.messages[-1]["content"])
    return picture.pixels.astype(int)


def blobs(pixels):
    """Each connected run of one colour as (look, box, mask), found in the pixels alone."""
    found = []
    for color, rgb in COLORS.items():
        left = (pixels == np.array(rgb)).all(2)
        while left.any():
            mask, edge = np.zeros_like(left), [tuple(np.argwhere(left)[0])]
            while edge:
                y, x = edge.pop()
                if 0 <= y < left.shape[0] and 0 <= x < left.shape[1] and left[y, x]:
                    left[y, x], mask[y, x] = False, True
                    edge += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
            ys, xs = mask.nonzero()
            box = [int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1]
            filled = mask.sum() / ((box[2] - box[0]) * (box[3] - box[1]))
            kind = "square" if filled > 0.95 else "circle" if filled > 0.66 else "triangle"
            found.append((f"{color} {kind}", box, mask))
    return found


def question_of(problem):
    return problem.bare_question.strip().splitlines()[-1]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_count_equals_blobs(level):
    for problem in CountShapes(level=level).train[:PROBLEMS]:
        look = question_of(problem).removeprefix("How many ").removesuffix("s are in the picture?")
        assert problem.answer == sum(name == look for name, _, _ in blobs(pixels_of(problem)))


def test_counts_are_spread():
    answers = [p.answer for p in CountShapes(most=3).train[:200]]
    assert set(answers) == {0, 1, 2, 3} and max(map(answers.count, range(4))) < 80


@pytest.mark.parametrize("level", [1, 2, 3])
def test_box_is_tight(level):
    for problem in LocateShape(level=level).train[:PROBLEMS]:
        look = question_of(problem).removeprefix("Where is the ").removesuffix("?")
        assert [box for name, box, _ in blobs(pixels_of(problem)) if name == look] == [problem.answer["box"]]


def test_boxes_are_all_of_a_look():
    for problem in LocateShapes(level=2).train[:PROBLEMS]:
        look = question_of(problem).removeprefix("Where is every ").removesuffix("?")
        assert sorted(box for name, box, _ in blobs(pixels_of(problem)) if name == look) == problem.answer["boxes"]


def test_point_and_masks_are_the_pixels_of_the_shape():
    point, segment = PointAtShape(level=2), SegmentShape(level=2)
    for problem in point.train[:PROBLEMS]:
        look = question_of(problem).removeprefix("Point at the ").removesuffix(".")
        (mask,) = [mask for name, _, mask in blobs(pixels_of(problem)) if name == look]
        assert (decode_rle(problem.answer["mask"]) == mask).all()
    for problem in segment.train[:PROBLEMS]:
        look = question_of(problem).removeprefix("Outline the ").partition(" by ")[0]
        (mask,) = [mask for name, _, mask in blobs(pixels_of(problem)) if name == look]
        assert (decode_rle(problem.answer["mask"]) == mask).all()


def test_phrase_fits_one_shape():
    """Read from the pixels: of the boxes with the look, one lies wholly on the side that the phrase names."""
    for problem in ReferToShape(level=3).train[:PROBLEMS]:
        phrase = question_of(problem).removeprefix("Where is the ").removesuffix("?")
        relation = next(r for r in ("left of", "right of", "above", "below") if f" {r} " in phrase)
        look, anchor = phrase.split(f" {relation} the ")
        seen = blobs(pixels_of(problem))
        (anchor_box,) = [box for name, box, _ in seen if name == anchor]
        alike = [box for name, box, _ in seen if name == look]
        edge, opposite, sign = {
            "left of": (2, 0, 1), "right of": (0, 2, -1), "above": (3, 1, 1), "below": (1, 3, -1)
        }[relation]  # fmt: skip
        fits = [box for box in alike if sign * box[edge] <= sign * anchor_box[opposite]]
        assert len(alike) > 1 and fits == [problem.answer["box"]]


def test_order_is_by_width():
    for problem in OrderShapes(level=3).train[:PROBLEMS]:
        seen = sorted(blobs(pixels_of(problem)), key=lambda blob: blob[1][2] - blob[1][0])
        assert [name for name, _, _ in seen] == problem.answer


def test_halves_are_the_same_where_the_answer_says_so():
    task = SameOrDifferent(level=3)
    problems = task.train[:100]
    for problem in problems:
        pixels = pixels_of(problem)
        equal = (pixels[:, : task.side] == pixels[:, -task.side :]).all()
        assert problem.answer == ("same" if equal else "different")
    assert 25 < sum(p.answer == "same" for p in problems) < 75


def test_maze_is_drawn_cell_by_cell():
    task = PictureMaze(side=3, cell=5)
    for problem in task.train[:PROBLEMS]:
        middle = pixels_of(problem)[2::5, 2::5]
        signs = {COLORS["black"]: "#", COLORS["green"]: "S", COLORS["red"]: "G"}
        assert ["".join(signs.get(tuple(cell), ".") for cell in row) for row in middle.tolist()] == problem.answer


def test_clock_hands_show_the_time():
    """The long blue hand and the short black one, by the mean direction of their pixels from the centre."""
    task = ReadClock(side=96, minutes=1)
    rng = random.Random(1)
    for _ in range(PROBLEMS):
        clock = task.draw(rng)._replace(color="red")
        pixels = task.picture(clock).pixels
        ys, xs = np.mgrid[:96, :96] + 0.5
        far = np.hypot(ys - clock.y, xs - clock.x)

        def direction(color, low, high, pixels=pixels, xs=xs, ys=ys, far=far, clock=clock):
            hand = (pixels == COLORS[color]).all(2) & (far > low * clock.radius) & (far < high * clock.radius)
            return math.atan2((xs[hand] - clock.x).mean(), -(ys[hand] - clock.y).mean()) / (2 * math.pi) % 1

        minute = direction("blue", 0.5, 0.72) * 60
        assert min(abs(minute - clock.minute), 60 - abs(minute - clock.minute)) < 0.6
        hour = direction("black", 0.15, 0.44) * 12
        expected = clock.hour % 12 + clock.minute / 60
        assert min(abs(hour - expected), 12 - abs(hour - expected)) < 0.25


def test_run_lengths_on_a_grid():
    task = SegmentShape(level=1, mask="runs", grid=8)
    for problem in task.train[:10]:
        cells = decode_rle(problem.answer["mask"])
        assert (
            cells.shape == (8, 8) and cells.any() and task.verifier.grade(task.gold(problem), problem.answer).value == 1
        )
    halves = np.zeros((8, 8), bool)
    halves[:, :3] = True
    assert cover_cells(halves, 4).tolist() == [[True, True, False, False]] * 4  # half of a cell is enough


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [7, 9, 15, 31])
def test_shapes_touch_their_boxes(kind, size):
    shape = Shape(next(look for look in LOOKS if look.kind == kind), 3, 4, size)
    ys, xs = shape_mask(shape, 40).nonzero()
    assert [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] == shape.box


def test_run_lengths_are_read_back():
    rng = np.random.default_rng(0)
    for density in (0.0, 0.3, 1.0):
        mask = rng.random((6, 9)) < density
        assert (decode_rle(encode_mask(mask)) == mask).all()


def test_scene_key_ignores_the_order_of_shapes():
    scene = draw_scene(random.Random(0), 64, LOOKS[:3])
    assert Scene(64, scene.shapes[::-1]).key == scene.key


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (CountShapes, {"most": 60}),
        (LocateShape, {"shapes": 0}),
        (LocateShape, {"side": 8}),
        (LocateShape, {"side": 5000}),
        (OrderShapes, {"shapes": 19, "side": 200}),
        (SegmentShape, {"mask": "bitmap"}),
        (ReadClock, {"minutes": 7}),
        (PictureMaze, {"cell": 0}),
    ],
)
def test_bad_settings_are_refused(kind, settings):
    with pytest.raises(UsageError):
        kind(**settings)


def test_answer_in_another_frame_earns_nothing():
    """Coordinates on a scale of 1000, as some models give them, leave a picture of 64 pixels."""
    task = LocateShape()
    problem = task.train[0]
    scaled = [round(n * 1000 / 64) for n in problem.answer["box"]]
    score = task.verifier.grade(f"<answer>{json.dumps(scaled)}</answer>", problem.answer)
    assert score.value == 0 and "leaves the image" in score.reason
