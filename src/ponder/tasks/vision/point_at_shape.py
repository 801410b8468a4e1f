"""Point at a shape."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ponder.tasks.vision.find_shape import FindShape, ShapeItem
from ponder.tasks.vision.scene import encode_mask, shape_mask
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.geometry import decode_rle
from ponder.verify.vision.verifiers import PointInMask


@dataclass(frozen=True, kw_only=True)
class PointAtShape(FindShape):
    """A point on one of up to `shapes` shapes; right where it lies on a pixel of that shape."""

    ANSWER_SPEC = AnswerSpec("the point", ("tag", "boxed"), " as [x, y]", allow_bare=False)

    @property
    def name(self) -> str:
        return "point-at-shape"

    @property
    def verifier(self) -> PointInMask:
        return PointInMask()

    def request(self, item: ShapeItem) -> str:
        return f"Point at the {item.target.look}."

    def answer(self, item: ShapeItem) -> dict[str, Any]:
        return {"mask": encode_mask(shape_mask(item.target, self.side)), "size": [self.side, self.side]}

    def solution(self, problem: Problem) -> str:
        """The shape's pixel next to its centre of mass: all shapes are convex."""
        rows, columns = decode_rle(problem.answer["mask"]).nonzero()
        return json.dumps([round(float(columns.mean())), round(float(rows.mean()))])
