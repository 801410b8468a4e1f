"""Pictures of runs and logs, each with its numbers: `draw(kind, ...)`, then `Drawn.save`."""

from ponder.measure.figures.drawn import Drawn
from ponder.measure.figures.kinds import KINDS, Kind, draw

__all__ = ["KINDS", "Drawn", "Kind", "draw"]
