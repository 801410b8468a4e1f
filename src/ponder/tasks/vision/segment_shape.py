"""Give the mask of a shape, as a polygon or as run lengths on a grid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UnknownName
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.vision.find_shape import FindShape, ShapeItem
from ponder.tasks.vision.scene import encode_mask, shape_mask
from ponder.types import Problem
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.vision.geometry import decode_rle
from ponder.verify.vision.verifiers import MaskIoU

MaskForm = Literal["polygon", "runs"]
MASK_FORMS: tuple[MaskForm, ...] = get_args(MaskForm)


@dataclass(frozen=True, kw_only=True)
class SegmentShape(FindShape):
    """The mask of one of up to `shapes` shapes; graded by IoU.

    `mask`: "polygon" [[x, y], ...] in pixels, or "runs", COCO's run lengths on a grid of `grid` x `grid` cells.
    """

    ANSWER_SPEC = AnswerSpec("the mask", ("tag", "boxed"), allow_bare=False)

    mask: MaskForm = "polygon"
    grid: int = 16  # cells across and down, for run lengths

    def check(self) -> None:
        super().check()
        if self.mask not in MASK_FORMS:
            raise UnknownName("form of masks", str(self.mask), MASK_FORMS)
        require_at_least(8, grid=self.grid)
        require_at_most(self.side, grid=self.grid)

    @property
    def name(self) -> str:
        return "segment-shape"

    @property
    def verifier(self) -> MaskIoU:
        return MaskIoU()

    def request(self, item: ShapeItem) -> str:
        if self.mask == "polygon":
            return f"Outline the {item.target.look} by a polygon [[x, y], [x, y], ...] of its corners."
        return (
            f"Divide the picture into {self.grid} x {self.grid} cells. Which of them does the {item.target.look} cover?"
            f' Give run lengths {{"size": [{self.grid}, {self.grid}], "counts": [...]}}: how many cells in a row are'
            " free, then covered, then free, and so on, down the columns from the left."
        )

    def answer(self, item: ShapeItem) -> dict[str, Any]:
        pixels = shape_mask(item.target, self.side)
        cells = pixels if self.mask == "polygon" else cover_cells(pixels, self.grid)
        return {"mask": encode_mask(cells), "size": [cells.shape[1], cells.shape[0]]}

    def solution(self, problem: Problem) -> str:
        if self.mask == "runs":
            return json.dumps(problem.answer["mask"])
        return json.dumps(outline(decode_rle(problem.answer["mask"])))


def cover_cells(pixels: NDArray[np.bool_], grid: int) -> NDArray[np.bool_]:
    """The cells of a grid that a shape covers by half or more; if there are none, those that it covers most."""
    edges = np.linspace(0, len(pixels), grid + 1).round().astype(int)
    share = np.array(
        [[pixels[y1:y2, x1:x2].mean() for x1, x2 in pairwise(edges)]
         for y1, y2 in pairwise(edges)]
    )  # fmt: skip
    return share >= min(0.5, share.max())


def outline(mask: NDArray[np.bool_]) -> list[list[int]]:
    """The corners of the pixels' outline, for a mask whose rows are one run each."""
    rows = np.flatnonzero(mask.any(1))
    left = [int(mask[row].argmax()) for row in rows]
    right = [int(mask.shape[1] - mask[row][::-1].argmax()) for row in rows]
    down = [[x, int(row) + end] for x, row in zip(right, rows, strict=True) for end in (0, 1)]
    up = [[x, int(row) + end] for x, row in zip(left, rows, strict=True) for end in (0, 1)][::-1]
    corners = down + up
    return [
        at
        for before, at, after in zip([corners[-1], *corners], corners, [*corners[1:], corners[0]], strict=False)
        if not (before[0] == at[0] == after[0] or before[1] == at[1] == after[1])
    ]
