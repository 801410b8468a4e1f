"""Count the shapes of one look in a picture."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import require_at_least
from ponder.tasks.vision.drawn_task import DrawnTask, check_side
from ponder.tasks.vision.scene import LOOKS, Look, Scene, draw_looks, draw_scene, render_scene
from ponder.verify import AnswerForm, FinalNumber
from ponder.verify.answers.style import AnswerSpec


class CountItem(NamedTuple):
    scene: Scene
    look: Look


@dataclass(frozen=True, kw_only=True)
class CountShapes(DrawnTask[CountItem]):
    """How many shapes of one colour and kind, 0 to `most` of them, among up to `others` of other looks."""

    ANSWER_SPEC = AnswerSpec("the final number")
    LEVELS = (
        {"most": 3, "others": 0, "side": 64},
        {"most": 4, "others": 2, "side": 64},
        {"most": 6, "others": 4, "side": 96},
        {"most": 9, "others": 8, "side": 128},
    )

    side: int = 64
    most: int = 4
    others: int = 2
    forms: tuple[AnswerForm, ...] = ()  # none: those of the style; the first is how gold is written

    def check(self) -> None:
        check_side(self.side)
        require_at_least(1, most=self.most)
        require_at_least(0, others=self.others)
        draw_scene(random.Random(0), self.side, [LOOKS[0]] * (self.most + self.others))  # or it says that they are many

    @property
    def name(self) -> str:
        return "count-shapes"

    @property
    def verifier(self) -> FinalNumber:
        return FinalNumber(self.answer_forms)

    def draw(self, rng: random.Random) -> CountItem:
        look = rng.choice(LOOKS)
        looks = [look] * rng.randint(0, self.most) + draw_looks(rng, rng.randint(0, self.others), without=[look])
        return CountItem(draw_scene(rng, self.side, looks), look)

    def key(self, item: CountItem) -> str:
        """The picture alone: another question about it is on the same side."""
        return item.scene.key if item.scene.shapes else f"{item.scene.key} {item.look}"

    def picture(self, item: CountItem) -> Picture:
        return render_scene(item.scene)

    def question(self, item: CountItem) -> str:
        return f"How many {item.look}s are in the picture?"

    def answer(self, item: CountItem) -> int:
        return len(item.scene.matches(item.look))
