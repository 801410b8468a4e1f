"""Find the way through a maze that is drawn, not written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ponder.pictures.picture import Picture
from ponder.tasks.generated.generated_task import require_at_least, require_at_most
from ponder.tasks.generated.maze import Lines, Maze
from ponder.tasks.vision.drawn_task import DrawnTask
from ponder.tasks.vision.scene import BACKGROUND, COLORS

_CELL_COLORS = {"#": COLORS["black"], "S": COLORS["green"], "G": COLORS["red"]}


@dataclass(frozen=True, kw_only=True)
class PictureMaze(Maze, DrawnTask[Lines]):
    """As `maze`, in a picture with `cell` pixels for each cell: from the green one to the red one."""

    LEVELS = Maze.LEVELS[:5]

    cell: int = 7

    def check(self) -> None:
        super().check()
        require_at_least(1, cell=self.cell)
        require_at_most(32, cell=self.cell)

    @property
    def name(self) -> str:
        return "picture-maze"

    def picture(self, item: Lines) -> Picture:
        cells = np.array([[_CELL_COLORS.get(sign, BACKGROUND) for sign in line] for line in item], np.uint8)
        return Picture.from_pixels(cells.repeat(self.cell, axis=0).repeat(self.cell, axis=1))

    def question(self, item: Lines) -> str:
        way = "a shortest way" if self.shortest else "a way"
        cells = f"{len(item[0])} cells across and {len(item)} down"
        return (
            f"The picture is a maze of {cells}; black cells are walls. Find {way} from the green cell to the red cell."
        )
