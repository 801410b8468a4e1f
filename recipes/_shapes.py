"""A task for the smallest model that sees: find the box of a shape, asked in two words."""

import json
import random
from dataclasses import dataclass

import numpy as np

from ponder.pictures.picture import Picture
from ponder.tasks.vision.find_shape import ShapeItem
from ponder.tasks.vision.locate_shape import LocateShape
from ponder.tasks.vision.scene import LOOKS, draw_scene
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}="
ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789,[]{}\\="

_SIZES = range(15, 40, 2)  # pixels; large, so that a near miss overlaps


@dataclass(frozen=True, kw_only=True)
class FindBox(LocateShape):
    """`red circle` is answered `\\boxed{[12,3,27,18]}`. `blind`: the picture is grey, to see what guessing earns."""

    ANSWER_SPEC = AnswerSpec("the box", ("boxed",), allow_bare=False)
    DEFAULT_STYLE = "plain"

    shapes: int = 1
    blind: bool = False

    def draw(self, rng: random.Random) -> ShapeItem:
        if self.shapes > 1:
            return super().draw(rng)
        scene = draw_scene(rng, self.side, [rng.choice(LOOKS)], [rng.choice(_SIZES)])
        return ShapeItem(scene, scene.shapes[0])

    def question(self, item: ShapeItem) -> str:
        return str(item.target.look)

    def solution(self, problem: Problem) -> str:
        return json.dumps(problem.answer["box"], separators=(",", ":"))

    def picture(self, item: ShapeItem) -> Picture:
        seen = super().picture(item)
        return Picture.from_pixels(np.full_like(seen.pixels, 128)) if self.blind else seen
