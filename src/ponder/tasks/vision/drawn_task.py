"""The base class of tasks whose questions are about a picture."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from ponder.pictures.message_parts import image_part, text_part
from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import Item, require_at_least, require_at_most
from ponder.tasks.generated.question_task import QuestionTask
from ponder.types import Problem

MAX_SIDE_PIXELS = 1024


@dataclass(frozen=True, kw_only=True)
class DrawnTask(QuestionTask[Item]):
    """The last message of a problem is a picture and a question about it. Coordinates are pixels of that picture."""

    @abstractmethod
    def picture(self, item: Item) -> Picture: ...

    def problem(self, item: Item, id: str) -> Problem:
        problem = super().problem(item, id)
        *before, last = problem.messages
        parts = [image_part(self.picture(item)), text_part(last["content"])]
        return replace(problem, messages=(*before, {**last, "content": parts}))


def check_side(side: int, least: int = 32) -> None:
    """Refuse pictures of a size that cannot be drawn or seen."""
    require_at_least(least, side=side)
    require_at_most(MAX_SIDE_PIXELS, side=side)


def describe_frame(width: int, height: int) -> str:
    """Which coordinates an answer is in."""
    return f"The picture is {width} pixels wide and {height} pixels high; x runs to the right and y downwards."
