"""List the shapes of a picture by their size."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.vision.drawn_task import DrawnTask, check_side
from ponder.tasks.vision.scene import LOOKS, Scene, draw_scene, render_scene, size_range
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.final_answer.text import FinalList

_STEP_PIXELS = 2  # by how much a shape is wider than the next; every second odd size


@dataclass(frozen=True, kw_only=True)
class OrderShapes(DrawnTask[Scene]):
    """`shapes` shapes of different looks and widths, from the narrowest to the widest."""

    ANSWER_SPEC = AnswerSpec("the sorted list", ("tag", "boxed", "line"), ", separated by commas")
    LEVELS = (
        {"shapes": 2, "side": 64},
        {"shapes": 3, "side": 80},
        {"shapes": 4, "side": 112},
        {"shapes": 6, "side": 176},
    )

    side: int = 80
    shapes: int = 3

    def check(self) -> None:
        check_side(self.side)
        require_at_least(2, shapes=self.shapes)
        if self.shapes > min(len(LOOKS), len(self._sizes)):
            raise UsageError(
                f"a picture of {self.side} pixels has no {self.shapes} shapes of different widths; take fewer, or a"
                " larger side"
            )

    @property
    def _sizes(self) -> range:
        return size_range(self.side, self.shapes)[::_STEP_PIXELS]

    @property
    def name(self) -> str:
        return "order-shapes"

    @property
    def verifier(self) -> FinalList:
        return FinalList(self.answer_forms)

    def draw(self, rng: random.Random) -> Scene:
        return draw_scene(rng, self.side, rng.sample(LOOKS, self.shapes), rng.sample(self._sizes, self.shapes))

    def key(self, item: Scene) -> str:
        return item.key

    def picture(self, item: Scene) -> Picture:
        return render_scene(item)

    def question(self, item: Scene) -> str:
        names = ", ".join(sorted(str(shape.look) for shape in item.shapes))
        return f"Sort the shapes of the picture from the narrowest to the widest: {names}."

    def answer(self, item: Scene) -> list[str]:
        return [str(shape.look) for shape in sorted(item.shapes, key=lambda shape: shape.size)]

    def solution(self, problem: Problem) -> str:
        return ", ".join(problem.answer)
