"""Find the box of a shape, and the boxes of all shapes of one look."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.vision.drawn_task import DrawnTask, check_side, describe_frame
from ponder.tasks.vision.find_shape import FindShape, ShapeItem
from ponder.tasks.vision.scene import LOOKS, Look, Scene, draw_looks, draw_scene, render_scene
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.verifiers import BoxIoU, BoxSetIoU

BOX_NOTATION = " as [x1, y1, x2, y2]: its left, top, right and bottom edges"


@dataclass(frozen=True, kw_only=True)
class LocateShape(FindShape):
    """The box around one of up to `shapes` shapes; graded by IoU.

    `threshold`: the reward is 1 from this IoU on, else 0, in place of the IoU itself.
    """

    ANSWER_SPEC = AnswerSpec("the box", ("tag", "boxed"), BOX_NOTATION, allow_bare=False)

    threshold: float | None = None

    @property
    def name(self) -> str:
        return "locate-shape"

    @property
    def verifier(self) -> BoxIoU:
        return BoxIoU(threshold=self.threshold)

    def request(self, item: ShapeItem) -> str:
        return f"Where is the {item.target.look}?"

    def answer(self, item: ShapeItem) -> dict[str, list[int]]:
        return {"box": item.target.box, "size": [self.side, self.side]}

    def solution(self, problem: Problem) -> str:
        return json.dumps(problem.answer["box"])


class LocateItem(NamedTuple):
    scene: Scene
    look: Look


@dataclass(frozen=True, kw_only=True)
class LocateShapes(DrawnTask[LocateItem]):
    """The boxes around 1 to `most` shapes of one look among up to `others` of other looks; graded by the mean IoU."""

    ANSWER_SPEC = AnswerSpec("a list of boxes", ("tag", "boxed"), ", each as [x1, y1, x2, y2]", allow_bare=False)
    LEVELS = (
        {"most": 2, "others": 0, "side": 64},
        {"most": 3, "others": 2, "side": 64},
        {"most": 5, "others": 4, "side": 96},
        {"most": 8, "others": 8, "side": 160},
    )

    side: int = 64
    most: int = 3
    others: int = 2

    def check(self) -> None:
        check_side(self.side)
        require_at_least(1, most=self.most)
        require_at_least(0, others=self.others)
        draw_scene(random.Random(0), self.side, [LOOKS[0]] * (self.most + self.others))

    @property
    def name(self) -> str:
        return "locate-shapes"

    @property
    def verifier(self) -> BoxSetIoU:
        return BoxSetIoU()

    def draw(self, rng: random.Random) -> LocateItem:
        look = rng.choice(LOOKS)
        looks = [look] * rng.randint(1, self.most) + draw_looks(rng, rng.randint(0, self.others), without=[look])
        return LocateItem(draw_scene(rng, self.side, looks), look)

    def key(self, item: LocateItem) -> str:
        return item.scene.key

    def picture(self, item: LocateItem) -> Picture:
        return render_scene(item.scene)

    def question(self, item: LocateItem) -> str:
        return f"{describe_frame(self.side, self.side)}\nWhere is every {item.look}?"

    def answer(self, item: LocateItem) -> dict[str, Any]:
        boxes = sorted(shape.box for shape in item.scene.matches(item.look))
        return {"boxes": boxes, "size": [self.side, self.side]}

    def solution(self, problem: Problem) -> str:
        return json.dumps(problem.answer["boxes"])
