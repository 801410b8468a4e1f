"""Scenes of coloured shapes on a square canvas: drawn at random, without overlap, and rendered to the pixel.

Coordinates are pixels, y downwards. A shape's box [x1, y1, x2, y2] is tight: each of its edges touches a pixel of the
shape.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.pictures.picture import Picture
from ponder.verify.vision.geometry import rasterize_polygon

KINDS = ("circle", "square", "triangle")
COLORS = {
    "red": (214, 39, 40),
    "green": (34, 150, 60),
    "blue": (35, 85, 220),
    "yellow": (235, 195, 20),
    "purple": (150, 60, 190),
    "black": (25, 25, 25),
}
BACKGROUND = (245, 245, 245)

_GAP_PIXELS = 2  # between two boxes, and to the border
_PLACE_ATTEMPTS, _SCENE_ATTEMPTS = 60, 200


class Look(NamedTuple):
    """What a shape looks like, wherever it is."""

    color: str
    kind: str

    def __str__(self) -> str:
        return f"{self.color} {self.kind}"


LOOKS = tuple(Look(color, kind) for color in COLORS for kind in KINDS)


class Shape(NamedTuple):
    look: Look
    x: int  # of its left edge
    y: int  # of its upper edge
    size: int  # pixels across and down; odd, so that a triangle's tip is a pixel

    @property
    def box(self) -> list[int]:
        return [self.x, self.y, self.x + self.size, self.y + self.size]

    @property
    def corners(self) -> list[list[int]]:
        """Of a square or a triangle."""
        x1, y1, x2, y2 = self.box
        if self.look.kind == "square":
            return [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
        tip = x1 + self.size // 2  # one pixel wide
        return [[tip, y1], [tip + 1, y1], [x2, y2], [x1, y2]]


class Scene(NamedTuple):
    side: int  # pixels
    shapes: tuple[Shape, ...]

    def matches(self, look: Look) -> list[Shape]:
        return [shape for shape in self.shapes if shape.look == look]

    @property
    def key(self) -> str:
        """Equal for scenes that look the same."""
        return f"{self.side} {sorted(self.shapes)}"


def shape_mask(shape: Shape, side: int) -> NDArray[np.bool_]:
    """The pixels [side, side] of a shape."""
    if shape.look.kind != "circle":
        return rasterize_polygon(np.array(shape.corners, float), (side, side))
    centres = np.arange(side) + 0.5
    radius = shape.size / 2
    return (centres[:, None] - shape.y - radius) ** 2 + (centres - shape.x - radius) ** 2 <= radius**2


def render_scene(scene: Scene) -> Picture:
    pixels = np.full((scene.side, scene.side, 3), BACKGROUND, np.uint8)
    for shape in scene.shapes:
        pixels[shape_mask(shape, scene.side)] = COLORS[shape.look.color]
    return Picture.from_pixels(pixels)


def draw_scene(rng: random.Random, side: int, looks: Sequence[Look], sizes: Sequence[int] = ()) -> Scene:
    """A scene with one shape of each look, in random places, in an order that says nothing. `sizes`: of the shapes in
    the order of the looks; by default each is drawn."""
    for _ in range(_SCENE_ATTEMPTS):
        shapes: list[Shape] = []
        for i, look in enumerate(looks):
            size = sizes[i] if sizes else _draw_size(rng, side, len(looks))
            if (shape := _place(rng, side, look, size, shapes)) is None:
                break
            shapes.append(shape)
        else:
            rng.shuffle(shapes)
            return Scene(side, tuple(shapes))
    raise UsageError(f"{len(looks)} shapes do not fit into a picture of {side} pixels; take fewer, or a larger side")


def draw_looks(rng: random.Random, number: int, without: Sequence[Look] = ()) -> list[Look]:
    """Looks drawn one by one, none of those in `without`. They may repeat."""
    others = [look for look in LOOKS if look not in without]
    return [rng.choice(others) for _ in range(number)]


def size_range(side: int, shapes: int) -> range:
    """The odd sizes of shapes with which so many find their places."""
    largest = int(side * 0.8 / (1 + shapes**0.5)) - _GAP_PIXELS
    return range(7, max(8, largest + 1), 2)


def _draw_size(rng: random.Random, side: int, shapes: int) -> int:
    return rng.choice(size_range(side, shapes))


def _place(rng: random.Random, side: int, look: Look, size: int, shapes: Sequence[Shape]) -> Shape | None:
    """A shape in a place that is free."""
    room = side - size - 2 * _GAP_PIXELS
    if room < 0:
        return None
    for _ in range(_PLACE_ATTEMPTS):
        shape = Shape(look, _GAP_PIXELS + rng.randint(0, room), _GAP_PIXELS + rng.randint(0, room), size)
        if all(_apart(shape, other) for other in shapes):
            return shape
    return None


def _apart(a: Shape, b: Shape) -> bool:
    across = max(a.x - (b.x + b.size), b.x - (a.x + a.size))
    down = max(a.y - (b.y + b.size), b.y - (a.y + a.size))
    return max(across, down) >= _GAP_PIXELS


def encode_mask(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """COCO's uncompressed run lengths: down the columns, zeros first."""
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(flat, prepend=False))
    counts = np.diff(np.concatenate([[0], edges, [flat.size]]))
    return {"size": [int(n) for n in mask.shape], "counts": [int(n) for n in counts]}
