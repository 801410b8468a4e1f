"""Compute a bounding box from its description and from what happens to it and to its image."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

from ponder.errors import UsageError
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask, check_kinds
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.verifiers import BoxIoU

Kind = Literal["corner-size", "union", "intersection", "resize", "pad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Numbers = tuple[int, ...]
PixelBox = tuple[int, int, int, int]  # x1, y1, x2, y2

_FACTORS = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(3, 2), Fraction(2), Fraction(3))
_GRID = 4  # pixels; edges on this grid stay whole numbers under every factor
_CONVENTION = "Boxes are written [x1, y1, x2, y2]: their left, top, right and bottom edges in pixels, y downwards."


class BoxStep(NamedTuple):
    """What happens to the box. `numbers`: the other box, the image's new size, or the padding in pixels."""

    kind: Kind
    numbers: Numbers


class BoxItem(NamedTuple):
    size: tuple[int, int]  # width and height of the image
    box: PixelBox
    corner_size: bool  # the question gives the box by its top-left corner, width and height
    steps: tuple[BoxStep, ...]


@dataclass(frozen=True, kw_only=True)
class Boxes(QuestionTask[BoxItem]):
    """A box in an image of up to `largest` pixels a side, through `steps` different `kinds` of change; graded by IoU.

    `threshold`: the reward is 1 from this IoU on, else 0, in place of the IoU itself.
    """

    ANSWER_SPEC = AnswerSpec("the box", ("tag", "boxed"), " as [x1, y1, x2, y2]", allow_bare=False)
    LEVELS = (
        {"steps": 1, "largest": 100, "kinds": ("corner-size", "union")},
        {"steps": 1, "largest": 200, "kinds": KINDS},
        {"steps": 2, "largest": 400, "kinds": KINDS},
        {"steps": 3, "largest": 640, "kinds": KINDS},
        {"steps": 5, "largest": 1200, "kinds": KINDS},
    )

    steps: int = 2
    largest: int = 400
    kinds: tuple[Kind, ...] = KINDS
    threshold: float | None = None

    def check(self) -> None:
        check_kinds(self.kinds, KINDS)
        require_at_least(1, steps=self.steps)
        require_at_least(40, largest=self.largest)
        require_at_most(1200, largest=self.largest)
        if self.steps > len(set(self.kinds)):
            raise UsageError(
                f"steps is {self.steps}, and each kind comes once in a problem; take fewer steps, or more kinds than"
                f" {', '.join(self.kinds)}"
            )

    @property
    def name(self) -> str:
        return "boxes"

    @property
    def verifier(self) -> BoxIoU:
        return BoxIoU(threshold=self.threshold)

    def draw(self, rng: random.Random) -> BoxItem:
        kinds = rng.sample(list(dict.fromkeys(self.kinds)), self.steps)
        corner_size = "corner-size" in kinds
        changes = [kind for kind in kinds if kind != "corner-size"]
        grid = _GRID if "resize" in changes else 1
        size = (self._draw_side(rng), self._draw_side(rng))
        box = _draw_box(rng, size, grid)
        item = BoxItem(size, box, corner_size, ())
        for kind in changes:
            step = _draw_step(rng, kind, size, box, grid)
            size, box = apply_step(step, size, box)
            item = item._replace(steps=(*item.steps, step))
            grid = 1 if kind == "resize" else grid
        return item

    def _draw_side(self, rng: random.Random) -> int:
        return _GRID * rng.randint(self.largest // (2 * _GRID), self.largest // _GRID)

    def key(self, item: BoxItem) -> str:
        """Without how the question gives the box: that is the same problem but for one subtraction."""
        return f"{item.size} {item.box} {[(kind, *numbers) for kind, numbers in item.steps]}"

    def question(self, item: BoxItem) -> str:
        x1, y1, x2, y2 = item.box
        start = f"A box in it is {list(item.box)}."
        if item.corner_size:
            extent = f"{x2 - x1} pixels wide and {y2 - y1} pixels high"
            start = f"A box in it has its top-left corner at ({x1}, {y1}) and is {extent}."
        lines = [f"An image is {item.size[0]} pixels wide and {item.size[1]} pixels high. {start} {_CONVENTION}"]
        if item.steps:
            lines.append("Change the box:" if len(item.steps) == 1 else "Change the box, one step after another:")
            lines += [f"{n}. {_describe(step)}" for n, step in enumerate(item.steps, 1)]
        return "\n".join([*lines, "What is the box then?" if item.steps else "What is the box?"])

    def answer(self, item: BoxItem) -> dict[str, list[int]]:
        size, box = item.size, item.box
        for step in item.steps:
            size, box = apply_step(step, size, box)
        return {"box": list(box), "size": list(size)}

    def tags(self, item: BoxItem) -> dict[str, Any]:
        kinds = [*(["corner-size"] if item.corner_size else []), *(step.kind for step in item.steps)]
        return {"kinds": kinds, "steps": self.steps}

    def solution(self, problem: Problem) -> str:
        return json.dumps(problem.answer["box"])


def apply_step(step: BoxStep, size: tuple[int, int], box: PixelBox) -> tuple[tuple[int, int], PixelBox]:
    """The image's size and the box after a step."""
    (x1, y1, x2, y2), (width, height), numbers = box, size, step.numbers
    if step.kind == "union":
        return size, (min(x1, numbers[0]), min(y1, numbers[1]), max(x2, numbers[2]), max(y2, numbers[3]))
    if step.kind == "intersection":
        return size, (max(x1, numbers[0]), max(y1, numbers[1]), min(x2, numbers[2]), min(y2, numbers[3]))
    if step.kind == "pad":
        pad = numbers[0]
        return size, (max(0, x1 - pad), max(0, y1 - pad), min(width, x2 + pad), min(height, y2 + pad))
    new_width, new_height = numbers
    across, down = Fraction(new_width, width), Fraction(new_height, height)
    scaled = (x1 * across, y1 * down, x2 * across, y2 * down)
    return (new_width, new_height), (int(scaled[0]), int(scaled[1]), int(scaled[2]), int(scaled[3]))


def _describe(step: BoxStep) -> str:
    numbers = step.numbers
    if step.kind == "union":
        return f"Take the smallest box that contains both it and the box {list(numbers)}."
    if step.kind == "intersection":
        return f"Take its intersection with the box {list(numbers)}."
    if step.kind == "pad":
        return f"Move each of its edges outwards by {numbers[0]} pixels, and clip it to the image."
    return f"Resize the image to {numbers[0]} pixels wide and {numbers[1]} pixels high, and the box with it."


def _draw_step(rng: random.Random, kind: Kind, size: tuple[int, int], box: PixelBox, grid: int) -> BoxStep:
    width, height = size
    if kind == "union":
        return BoxStep(kind, _draw_box(rng, size, grid))
    if kind == "intersection":
        x1, x2 = _overlapping_interval(rng, box[0], box[2], width, grid)
        y1, y2 = _overlapping_interval(rng, box[1], box[3], height, grid)
        return BoxStep(kind, (x1, y1, x2, y2))
    if kind == "pad":
        return BoxStep(kind, (grid * rng.randint(1, max(width, height) // (4 * grid)),))
    across, down = rng.choice(_FACTORS), rng.choice(_FACTORS)
    return BoxStep(kind, (int(width * across), int(height * down)))


def _draw_box(rng: random.Random, size: tuple[int, int], grid: int) -> PixelBox:
    """A box with its edges on the grid, up to half as wide and as high as the image."""
    (x1, x2), (y1, y2) = (_draw_interval(rng, side, grid) for side in size)
    return x1, y1, x2, y2


def _draw_interval(rng: random.Random, side: int, grid: int) -> tuple[int, int]:
    cells = side // grid
    length = rng.randint(max(1, cells // 16), max(1, cells // 2))
    start = rng.randint(0, cells - length)
    return grid * start, grid * (start + length)


def _overlapping_interval(rng: random.Random, low: int, high: int, side: int, grid: int) -> tuple[int, int]:
    """An interval on the grid that shares at least one cell with low to high."""
    start = rng.randrange(0, high, grid)
    return start, rng.randrange(max(start, low) + grid, side + 1, grid)
