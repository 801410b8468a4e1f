"""Say whether the two halves of a picture are the same."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.vision.drawn_task import DrawnTask, check_side
from ponder.tasks.vision.scene import LOOKS, Scene, draw_looks, draw_scene, render_scene
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.final_answer.text import FinalText

_LINE_PIXELS = 2  # between the halves


class HalvesItem(NamedTuple):
    left: Scene
    right: Scene


@dataclass(frozen=True, kw_only=True)
class SameOrDifferent(DrawnTask[HalvesItem]):
    """Two halves of `side` pixels with `shapes` shapes each; in half of the problems one shape has another look."""

    ANSWER_SPEC = AnswerSpec("one word, same or different,", ("tag", "boxed", "line"))
    LEVELS = (
        {"shapes": 1, "side": 32},
        {"shapes": 2, "side": 48},
        {"shapes": 4, "side": 64},
        {"shapes": 8, "side": 112},
    )

    side: int = 48
    shapes: int = 2

    def check(self) -> None:
        check_side(self.side)
        require_at_least(1, shapes=self.shapes)
        draw_scene(random.Random(0), self.side, [LOOKS[0]] * self.shapes)

    @property
    def name(self) -> str:
        return "same-or-different"

    @property
    def verifier(self) -> FinalText:
        return FinalText(self.answer_forms, ignore_case=True)

    def draw(self, rng: random.Random) -> HalvesItem:
        left = draw_scene(rng, self.side, draw_looks(rng, self.shapes))
        if rng.random() < 0.5:
            return HalvesItem(left, left)
        at = rng.randrange(self.shapes)
        shapes = list(left.shapes)
        shapes[at] = shapes[at]._replace(look=draw_looks(rng, 1, without=[shapes[at].look])[0])
        return HalvesItem(left, Scene(self.side, tuple(shapes)))

    def key(self, item: HalvesItem) -> str:
        return f"{item.left.key} {item.right.key}"

    def picture(self, item: HalvesItem) -> Picture:
        line = np.zeros((self.side, _LINE_PIXELS, 3), np.uint8)
        halves = [render_scene(scene).pixels for scene in item]
        return Picture.from_pixels(np.concatenate([halves[0], line, halves[1]], axis=1))

    def question(self, item: HalvesItem) -> str:
        return "A black line divides the picture. Are the two halves the same or different?"

    def answer(self, item: HalvesItem) -> str:
        return "same" if item.left == item.right else "different"
