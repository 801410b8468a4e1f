"""Find the shape that a phrase refers to: "the red square left of the blue circle"."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ponder.errors import TaskError
from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.vision.drawn_task import DrawnTask, check_side, describe_frame
from ponder.tasks.vision.locate_shape import BOX_NOTATION
from ponder.tasks.vision.scene import LOOKS, Scene, Shape, draw_looks, draw_scene, render_scene
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.verifiers import BoxIoU

# How far the second shape lies in this direction from the first: pixels between their edges, negative if not at all.
RELATIONS: dict[str, Callable[[Shape, Shape], int]] = {
    "left of": lambda a, b: b.x - (a.x + a.size),
    "right of": lambda a, b: a.x - (b.x + b.size),
    "above": lambda a, b: b.y - (a.y + a.size),
    "below": lambda a, b: a.y - (b.y + b.size),
}
_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_MAX_SCENES = 500


class ReferItem(NamedTuple):
    scene: Scene
    target: Shape
    relation: str
    anchor: Shape


@dataclass(frozen=True, kw_only=True)
class ReferToShape(DrawnTask[ReferItem]):
    """The box around one of 2 to `alike` equal shapes, told apart by where it lies from a shape of another look.

    Up to `others` more shapes stand around. Graded by IoU.
    """

    ANSWER_SPEC = AnswerSpec("the box", ("tag", "boxed"), BOX_NOTATION, allow_bare=False)
    LEVELS = (
        {"alike": 2, "others": 0, "side": 64},
        {"alike": 2, "others": 2, "side": 80},
        {"alike": 3, "others": 4, "side": 112},
        {"alike": 4, "others": 6, "side": 160},
    )

    side: int = 64
    alike: int = 2
    others: int = 1

    def check(self) -> None:
        check_side(self.side)
        require_at_least(2, alike=self.alike)
        require_at_least(0, others=self.others)
        draw_scene(random.Random(0), self.side, [LOOKS[0]] * (1 + self.alike + self.others))

    @property
    def name(self) -> str:
        return "refer-to-shape"

    @property
    def verifier(self) -> BoxIoU:
        return BoxIoU()

    def draw(self, rng: random.Random) -> ReferItem:
        for _ in range(_MAX_SCENES):
            look, anchor_look = rng.sample(LOOKS, 2)
            looks = [look] * rng.randint(2, self.alike) + [anchor_look]
            more = draw_looks(rng, rng.randint(0, self.others), without=[look, anchor_look])
            scene = draw_scene(rng, self.side, looks + more)
            (anchor,), alike = scene.matches(anchor_look), scene.matches(look)
            phrases = [
                (relation, shapes[0]) for relation in RELATIONS if len(shapes := _fits(relation, alike, anchor)) == 1
            ]
            if phrases:
                relation, target = rng.choice(phrases)
                return ReferItem(scene, target, relation, anchor)
        raise TaskError(f"no scene has one shape that a phrase fits; take fewer than {self.alike} alike")

    def key(self, item: ReferItem) -> str:
        return item.scene.key

    def picture(self, item: ReferItem) -> Picture:
        return render_scene(item.scene)

    def question(self, item: ReferItem) -> str:
        phrase = f"the {item.target.look} {item.relation} the {item.anchor.look}"
        return f"{describe_frame(self.side, self.side)}\nWhere is {phrase}?"

    def answer(self, item: ReferItem) -> dict[str, list[int]]:
        return {"box": item.target.box, "size": [self.side, self.side]}

    def solution(self, problem: Problem) -> str:
        return json.dumps(problem.answer["box"])


def _fits(relation: str, alike: list[Shape], anchor: Shape) -> list[Shape]:
    """The shapes that lie wholly in this direction; none if another one lies there in part: a reader could doubt."""
    fits = [shape for shape in alike if RELATIONS[relation](shape, anchor) >= 0]
    others = [shape for shape in alike if shape not in fits]
    return fits if all(RELATIONS[_OPPOSITE[relation]](shape, anchor) >= 0 for shape in others) else []
