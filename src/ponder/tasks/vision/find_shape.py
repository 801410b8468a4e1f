"""The base class of tasks about one shape, which the question names by its colour and kind."""

from __future__ import annotations

import random
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.vision.drawn_task import DrawnTask, check_side, describe_frame
from ponder.tasks.vision.scene import LOOKS, Scene, Shape, draw_looks, draw_scene, render_scene

SHAPE_LEVELS = (
    {"shapes": 1, "side": 64},
    {"shapes": 3, "side": 64},
    {"shapes": 6, "side": 96},
    {"shapes": 10, "side": 160},
)


class ShapeItem(NamedTuple):
    scene: Scene
    target: Shape


@dataclass(frozen=True, kw_only=True)
class FindShape(DrawnTask[ShapeItem]):
    """A scene of 1 to `shapes` shapes, one of which has a look of its own."""

    LEVELS = SHAPE_LEVELS

    side: int = 64
    shapes: int = 3

    def check(self) -> None:
        check_side(self.side)
        require_at_least(1, shapes=self.shapes)
        draw_scene(random.Random(0), self.side, [LOOKS[0]] * self.shapes)  # or it says that they are too many

    def draw(self, rng: random.Random) -> ShapeItem:
        look = rng.choice(LOOKS)
        others = draw_looks(rng, rng.randint(0, self.shapes - 1), without=[look])
        scene = draw_scene(rng, self.side, [look, *others])
        return ShapeItem(scene, scene.matches(look)[0])

    def key(self, item: ShapeItem) -> str:
        """The picture alone: another question about it is on the same side."""
        return item.scene.key

    def picture(self, item: ShapeItem) -> Picture:
        return render_scene(item.scene)

    def question(self, item: ShapeItem) -> str:
        return f"{describe_frame(self.side, self.side)}\n{self.request(item)}"

    @abstractmethod
    def request(self, item: ShapeItem) -> str:
        """What to do with the shape."""
