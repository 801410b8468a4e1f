"""Boxes, points, masks and detection, held against slow references and values worked out by hand."""

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bad_answers
from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.runs.job_json import decode, encode
from ponder.types import Problem, Step, Trace, ids, user_messages
from ponder.verify import BoxIoU, DetectionAP, MaskIoU, PointInMask
from ponder.verify.vision.geometry import (
    average_precision,
    decode_rle,
    giou,
    iou,
    mask_iou,
    points_in_polygon,
    rasterize_polygon,
)

SIZE = [100, 80]
BOX = {"box": [10, 10, 30, 30], "size": SIZE}
SQUARE = {"mask": [[10, 10], [30, 10], [30, 30], [10, 30]], "size": SIZE}
RUNS = {"mask": {"size": [2, 3], "counts": [1, 2, 3]}}  # columns: 0 1 | 1 0 | 0 0
CATS = {"boxes": [{"box": [0, 0, 10, 10], "label": "cat"}, {"box": [20, 20, 40, 40], "label": "cat"}], "size": SIZE}


def tag(value):
    return f"<think>there</think><answer>{value if isinstance(value, str) else json.dumps(value)}</answer>"


# --- boxes ---------------------------------------------------------------------------------------------------------


def test_iou_and_giou_by_hand():
    assert iou((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert iou((0, 0, 2, 2), (2, 0, 4, 2)) == 0.0  # they touch
    assert iou((0, 0, 4, 4), (1, 1, 3, 3)) == pytest.approx(4 / 16)
    assert giou((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7 - 2 / 9)  # hull 9, union 7
    assert giou((0, 0, 1, 1), (2, 0, 3, 1)) == pytest.approx(0 - 1 / 3)
    assert giou((0, 0, 1, 1), (0, 0, 1, 1)) == pytest.approx(1.0)


BOXES = st.tuples(*[st.integers(0, 12)] * 4).filter(lambda b: b[0] < b[2] and b[1] < b[3])


@given(BOXES, BOXES)
def test_iou_equals_counted_cells(a, b):
    def cells(box):
        return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}

    union, hull = cells(a) | cells(b), (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    assert iou(a, b) == pytest.approx(len(cells(a) & cells(b)) / len(union))
    assert giou(a, b) == pytest.approx(iou(a, b) - (hull - len(union)) / hull)
    assert iou(a, b) == iou(b, a) and -1 <= giou(a, b) <= iou(a, b)


def test_box_iou_scores():
    assert BoxIoU().grade(tag([10, 10, 30, 30]), BOX).value == 1.0
    assert BoxIoU().grade(tag([20, 10, 40, 30]), BOX).value == pytest.approx(1 / 3)
    assert BoxIoU(threshold=0.5).grade(tag([12, 10, 30, 30]), BOX).value == 1.0
    assert BoxIoU(threshold=0.5).grade(tag([20, 10, 40, 30]), BOX).value == 0.0
    near, far = (BoxIoU(use_giou=True).grade(tag(b), BOX).value for b in ([32, 10, 52, 30], [79, 59, 99, 79]))
    assert 0 < far < near < 0.5
    for settings_ in ({"threshold": 0.0}, {"threshold": 1.5}, {"threshold": 0.5, "use_giou": True}):
        with pytest.raises(UsageError):
            BoxIoU(**settings_)


@pytest.mark.parametrize(
    "box",
    [
        [30, 30, 10, 10],
        [10, 10, 10, 30],
        [10, 10, 30],
        [10, 10, 30, 30, 30],
        [-1, 10, 30, 30],
        [10, 10, 101, 30],
        [True, 10, 30, 30],
        ["10", 10, 30, 30],
        "[NaN, 10, 30, 30]",
        "[10, 10, Infinity, 30]",
        "[10, 10, 1e999, 30]",
        "10, 10, 30, 30",
        [[10, 10, 30, 30]],
        {"box": [10, 10, 30, 30]},
        "[10, 10, 30, 30] or [0, 0, 1, 1]",
        "[１０, 10, 30, 30]",
        [10, 10, 10**400, 30],
    ],
)
def test_box_iou_scores_malformed_boxes_zero(box):
    score = BoxIoU(use_giou=True).grade(tag(box), BOX)
    assert score.value == 0.0 and score.reason.startswith("malformed"), score


# --- masks ---------------------------------------------------------------------------------------------------------


def test_decode_rle_is_column_major():
    assert decode_rle(RUNS["mask"]).tolist() == [[False, True, False], [True, False, False]]


POINTS = st.lists(st.tuples(st.floats(-4, 16), st.floats(-4, 12)), min_size=3, max_size=8)


@settings(deadline=None)
@given(POINTS)
def test_rasterize_polygon_equals_points_in_polygon(corners):
    polygon = np.array(corners)
    centres = np.stack(np.meshgrid(np.arange(12) + 0.5, np.arange(8) + 0.5), -1)
    assert (rasterize_polygon(polygon, (12, 8)) == points_in_polygon(centres, polygon)).all()


@given(POINTS, st.tuples(st.floats(-4, 16), st.floats(-4, 12)))
def test_points_in_polygon_equals_a_loop(corners, point):
    x, y = point
    odd = False
    for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], corners[0]], strict=True):
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            odd = not odd
    assert bool(points_in_polygon(np.array(point), np.array(corners))) is odd


def test_rasterized_shapes_have_their_area():
    square = np.array([[2, 1], [6, 1], [6, 5], [2, 5]], float)
    assert rasterize_polygon(square, (10, 8)).sum() == 16 and rasterize_polygon(square + 100, (10, 8)).sum() == 0
    circle = np.array([[50 + 40 * np.cos(t), 50 + 40 * np.sin(t)] for t in np.linspace(0, 2 * np.pi, 400)[:-1]])
    assert rasterize_polygon(circle, (100, 100)).sum() == pytest.approx(np.pi * 1600, rel=0.01)
    star = np.array([[5, 0], [8, 10], [0, 3.5], [10, 3.5], [2, 10]])  # even-odd: its middle is a hole
    assert not points_in_polygon(np.array([5.0, 5.0]), star) and points_in_polygon(np.array([5.0, 1.5]), star)


def test_point_in_mask_scores():
    assert PointInMask().grade(tag([20, 20]), SQUARE).value == 1.0
    assert PointInMask().grade(tag([5, 20]), SQUARE).value == 0.0
    assert PointInMask().grade(tag([0.5, 1.5]), RUNS).value == 1.0
    assert PointInMask().grade(tag([0.5, 0.5]), RUNS).value == 0.0
    for bad in ([100, 20], [-1, 20], [20], [20, 20, 20], "20, 20", "[[20, 20]]", {"x": 20, "y": 20}):
        assert PointInMask().grade(tag(bad), SQUARE).reason.startswith("malformed")


def test_mask_iou_scores():
    assert MaskIoU().grade(tag(SQUARE["mask"]), SQUARE).value == 1.0
    assert MaskIoU().grade(tag([10, 10, 30, 10, 30, 30, 10, 30]), SQUARE).value == 1.0  # COCO's flat list
    half = [[20, 10], [40, 10], [40, 30], [20, 30]]
    assert MaskIoU().grade(tag(half), SQUARE).value == pytest.approx(1 / 3)
    assert MaskIoU().grade(tag(RUNS["mask"]), RUNS).value == 1.0
    assert MaskIoU().grade(tag({"size": [2, 3], "counts": [0, 6]}), RUNS).value == pytest.approx(2 / 6)
    assert MaskIoU().grade(tag([[200, 200], [300, 200], [300, 300]]), SQUARE).value == 0.0
    assert mask_iou(np.zeros((2, 2), bool), np.zeros((2, 2), bool)) == 0.0
    bad = (
        [[1, 2], [3, 4]],
        {"size": [3, 2], "counts": [6]},
        {"size": [2, 3], "counts": [-1, 7]},
        [1, 2, 3, 4, 5],
        [],
        {"size": [2, 3], "counts": [5]},
        {"size": [2, 3], "counts": "abc"},
        {"size": [10**9, 10**9], "counts": []},
    )
    for mask in bad:
        assert MaskIoU().grade(tag(mask), RUNS).reason.startswith("malformed"), mask


def test_rasterize_polygon_is_fast_on_large_polygons():
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 4000, (900, 2)).tolist()
    big = {"mask": [[0, 0], [4000, 0], [4000, 4000], [0, 4000]], "size": [4000, 4000]}
    assert 0 < MaskIoU().grade(tag(corners), big).value < 1


# --- detection -----------------------------------------------------------------------------------------------------


def test_average_precision_by_hand():
    one = np.array([1.0])
    assert average_precision(one, np.array([[1.0]]), 0.5) == 1.0
    assert average_precision(one, np.array([[0.4]]), 0.5) == 0.0
    assert average_precision(one, np.array([[0.5]]), 0.5) == 1.0  # the threshold itself counts
    # One of two found, by the first: precision 1 up to recall 0.5, which 51 of the 101 recalls do not exceed.
    assert average_precision(one, np.array([[1.0, 0.0]]), 0.5) == pytest.approx(51 / 101)
    # A miss ranked above the only hit: precision 1/2 everywhere. Below it: no harm.
    assert average_precision(np.array([0.9, 0.8]), np.array([[0.0], [1.0]]), 0.5) == pytest.approx(0.5)
    assert average_precision(np.array([0.9, 0.8]), np.array([[1.0], [0.0]]), 0.5) == 1.0
    # The second of two on one object is a miss.
    assert average_precision(np.array([0.9, 0.8]), np.array([[1.0, 0.0], [1.0, 0.0]]), 0.5) == pytest.approx(51 / 101)


def slow_average_precision(scores, overlaps, threshold):
    """COCO's definition with loops: at each of 101 recalls, the best precision of any cut that reaches it."""
    ranked = sorted(range(len(scores)), key=lambda n: -scores[n])
    free, points, hits = set(range(len(overlaps[0]))), [], 0
    for seen, n in enumerate(ranked, 1):
        able = [(overlaps[n][m], m) for m in free if overlaps[n][m] >= threshold]
        if able:
            free.remove(max(able)[1])
            hits += 1
        points.append((hits / len(overlaps[0]), hits / seen))
    cuts = [r / 100 for r in range(101)]
    return sum(max((p for recall, p in points if recall >= cut - 1e-12), default=0.0) for cut in cuts) / 101


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([0.5, 0.75, 0.95]))
def test_average_precision_by_a_slow_reference(gold, found, seed, threshold):
    rng = np.random.default_rng(seed)
    scores, overlaps = rng.random(found), np.round(rng.random((found, gold)) ** 0.3, 2)
    expected = slow_average_precision(scores.tolist(), overlaps.tolist(), threshold)
    assert average_precision(scores, overlaps, threshold) == pytest.approx(expected)


def test_detection_ap_scores():
    right = [
        {"box": [0, 0, 10, 10], "label": "Cat", "score": 0.9},
        {"box": [20, 20, 40, 40], "label": "cat", "score": 0.8},
    ]
    assert DetectionAP().grade(tag(right), CATS).value == 1.0
    assert DetectionAP().grade(tag(right[:1]), CATS).value == pytest.approx(51 / 101)
    assert DetectionAP().grade(tag([]), CATS).value == 0.0
    # IoU 0.8: right at 7 of the 10 thresholds
    near = [{"box": [0, 0, 10, 8], "label": "cat"}]
    assert DetectionAP().grade(tag(near), {"boxes": CATS["boxes"][:1]}).value == pytest.approx(0.7)
    assert DetectionAP(thresholds=(0.5,)).grade(tag(near), {"boxes": CATS["boxes"][:1]}).value == 1.0
    # Without scores the order counts: a miss first halves the precision.
    order = [{"box": [50, 50, 60, 60], "label": "cat"}, {"box": [0, 0, 10, 10], "label": "cat"}]
    assert DetectionAP().grade(tag(order), {"boxes": CATS["boxes"][:1]}).value == pytest.approx(0.5)
    assert DetectionAP().grade(tag(order[::-1]), {"boxes": CATS["boxes"][:1]}).value == 1.0
    # Naming classes that are not there is not free, nor is flooding.
    assert DetectionAP().grade(tag([*right, {"box": [1, 1, 2, 2], "label": "dog", "score": 0.1}]), CATS).value == 0.5
    assert "more than 3" in DetectionAP(max_boxes=3).grade(tag(right * 2), CATS).reason
    assert DetectionAP().grade(tag([]), {"boxes": []}).value == 1.0
    assert DetectionAP().grade(tag(right), {"boxes": []}).value == 0.0
    for settings_ in ({"max_boxes": 0}, {"thresholds": ()}, {"thresholds": (1.5,)}):
        with pytest.raises(UsageError):
            DetectionAP(**settings_)


@pytest.mark.parametrize(
    "expected",
    [
        "{}",
        [1],
        [{"box": [0, 0, 1, 1]}],
        [{"label": "cat"}],
        [{"box": [1, 1, 0, 0], "label": "cat"}],
        [[0, 0, 1, 1]],
        [{"box": [0, 0, 1, 1], "label": 7}],
        [{"box": [0, 0, 999, 1], "label": "cat"}],
        [{"box": [0, 0, 1, 1], "label": "cat", "score": "high"}],
        [{"box": [0, 0, 1, 1], "label": "cat", "score": 1}, {"box": [0, 0, 1, 1], "label": "cat"}],
        '[{"box": [0,0,1,1], "label": "cat", "score": NaN}]',
    ],
)
def test_detection_ap_scores_malformed_boxes_zero(expected):
    score = DetectionAP().grade(tag(expected), CATS)
    assert score.value == 0.0 and score.reason.startswith("malformed"), score


# --- all of them ---------------------------------------------------------------------------------------------------

EACH = [
    (BoxIoU(), BOX, [10, 10, 30, 30]),
    (PointInMask(), SQUARE, [20, 20]),
    (MaskIoU(), SQUARE, SQUARE["mask"]),
    (DetectionAP(), CATS, CATS["boxes"]),
]


@pytest.mark.parametrize(("scorer", "answer", "right"), EACH, ids=lambda x: type(x).__name__)
def test_vision_verifiers_on_gold_hostile_and_bad_data(scorer, answer, right):
    trace = Trace(Problem("p", user_messages("?"), answer), [Step(None, "", ids([])), Step(0, tag(right), ids([]))])
    assert isinstance(scorer, Scorer) and decode(encode(scorer)) == scorer
    assert asyncio.run(scorer(trace, [1]))[0].value == 1.0
    for text in (tag(right) * 2, f"<think>{tag(right)}</think>", json.dumps(right), tag(right) + " or not"):
        assert scorer.grade(text, answer).value == 0.0
    bad_answers.refused(scorer.grade, answer, below=0.9)
    key = next(iter(answer))
    for bad in (
        None,
        {},
        7,
        {key: None},
        {key: "x"},
        {key: [1, 2]},
        {**answer, "size": [0, 5]},
        {**answer, "size": "big"},
    ):
        score = scorer.grade(tag(right), bad)
        assert score.value is None and score.reason.startswith("bad data: "), (bad, score)


def test_bad_gold_masks_and_boxes_are_undecided():
    for scorer, answer in (
        (BoxIoU(), {"box": [3, 3, 1, 1]}),
        (BoxIoU(), {"box": [0, 0, 101, 1], "size": SIZE}),
        (MaskIoU(), {"mask": SQUARE["mask"]}),
        (MaskIoU(), {"mask": {"size": [2, 2], "counts": [4]}}),
        (PointInMask(), {"mask": [[0, 0], [1, 1]]}),
        (MaskIoU(), {"mask": RUNS["mask"], "size": SIZE}),
        (DetectionAP(), {"boxes": [{"box": [0, 0, 1, 1]}]}),
    ):
        assert scorer.grade(tag([1, 1]), answer).reason.startswith("bad data: "), answer
