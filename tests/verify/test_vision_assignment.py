"""The Hungarian method against scipy and against trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ponder.verify import BoxSetIoU, ClockTime
from ponder.verify.vision.assignment import best_assignment

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (5, 1), (4, 4), (3, 7), (7, 3), (30, 41)])
def test_assignment_has_the_largest_sum(rows, columns):
    optimize = pytest.importorskip("scipy.optimize")
    for values in (RNG.random((rows, columns)), np.round(RNG.random((rows, columns)), 1), np.zeros((rows, columns))):
        pairs = best_assignment(values)
        assert len({n for n, _ in pairs}) == len({m for _, m in pairs}) == len(pairs) == min(rows, columns)
        n, m = optimize.linear_sum_assignment(values, maximize=True)
        assert sum(values[pair] for pair in pairs) == pytest.approx(values[n, m].sum(), abs=1e-12)


def test_assignment_of_few_equals_all_permutations():
    for _ in range(50):
        values = RNG.random((4, 4))
        most = max(sum(values[i, p] for i, p in enumerate(order)) for order in itertools.permutations(range(4)))
        assert sum(values[pair] for pair in best_assignment(values)) == pytest.approx(most)


def test_assignment_of_nothing_is_empty():
    assert best_assignment(np.zeros((0, 3))) == best_assignment(np.zeros((3, 0))) == []


GOLD = {"boxes": [[0, 0, 10, 10], [20, 20, 30, 40]], "size": [64, 64]}


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("[[20, 20, 30, 40], [0, 0, 10, 10]]", 1.0),  # in any order
        ("[[0, 0, 10, 10]]", 0.5),
        ("[[0, 0, 10, 10], [20, 20, 30, 30]]", 0.75),
        ("[[0, 0, 10, 10], [20, 20, 30, 40], [50, 50, 60, 60], [40, 40, 44, 44]]", 0.5),
        ("[]", 0.0),
        ("[[10, 10, 0, 0], [20, 20, 30, 40]]", 0.0),  # inside out
        ("[[0, 0, 100, 10]]", 0.0),
        ("[0, 0, 10, 10]", 0.0),
    ],
)
def test_box_set_iou(answer, value):
    assert BoxSetIoU().grade(f"<answer>{answer}</answer>", GOLD).value == pytest.approx(value)


def test_box_set_without_gold_is_undecided():
    assert BoxSetIoU().grade("<answer>[]</answer>", {"boxes": []}).value is None


def test_every_box_at_once_earns_nothing():
    grid = [[x, y, x + 10, y + 10] for x in range(0, 50, 3) for y in range(0, 50, 3)]
    assert BoxSetIoU().grade(f"<answer>{grid}</answer>", GOLD).value == 0


@pytest.mark.parametrize(
    ("answer", "value"),
    [("3:05", 1), ("03:05", 1), ("15:05", 1), ("3:05.", 1), ("3:5", 0), ("3:06", 0), ("3", 0), ("27:05", 0), ("", 0)],
)
def test_clock_time(answer, value):
    assert ClockTime().grade(f"<answer>{answer}</answer>", "3:05").value == value


def test_clock_time_with_bad_gold_is_undecided():
    assert ClockTime().grade("<answer>3:05</answer>", "noon").value is None
    assert ClockTime().extract_answer("<answer>00:30</answer>") == "12:30"
