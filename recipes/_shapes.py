"""A task for the smallest model that sees: find the box of a shape, asked in two words."""

import json
from dataclasses import dataclass

import numpy as np

from ponder.pictures.picture import Picture
from ponder.tasks.vision.find_shape import ShapeItem
from ponder.tasks.vision.locate_shape import LocateShape
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec

TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}="
ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789,[]{}\\="


@dataclass(frozen=True, kw_only=True)
class FindBox(LocateShape):
    """`red circle` is answered `\\boxed{[12,3,27,18]}`. `blind`: the picture is grey, to see what guessing earns."""

    ANSWER_SPEC = AnswerSpec("the box", ("boxed",), allow_bare=False)
    DEFAULT_STYLE = "plain"

    blind: bool = False

    def question(self, item: ShapeItem) -> str:
        return str(item.target.look)

    def solution(self, problem: Problem) -> str:
        return json.dumps(problem.answer["box"], separators=(",", ":"))

    def picture(self, item: ShapeItem) -> Picture:
        seen = super().picture(item)
        return Picture.from_pixels(np.full_like(seen.pixels, 128)) if self.blind else seen
