"""Read the time from a clock with two hands."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ponder.errors import UsageError
from ponder.pictures.picture import Picture
from ponder.tasks.vision.drawn_task import DrawnTask, check_side
from ponder.tasks.vision.scene import BACKGROUND, COLORS
from ponder.verify.answers.style import AnswerSpec
from ponder.verify.final_answer.clock_time import ClockTime
from ponder.verify.vision.geometry import rasterize_polygon

_FACE = (255, 255, 255)


class Clock(NamedTuple):
    hour: int  # 1 to 12
    minute: int
    radius: int  # pixels
    x: int  # of the centre
    y: int
    color: str  # of the rim


@dataclass(frozen=True, kw_only=True)
class ReadClock(DrawnTask[Clock]):
    """The time on a clock in a picture of `side` pixels, to `minutes` minutes: 60 for full hours only."""

    ANSWER_SPEC = AnswerSpec("the time", ("tag", "boxed", "line"), " as H:MM")
    LEVELS = (
        {"minutes": 60, "side": 64},
        {"minutes": 30, "side": 64},
        {"minutes": 15, "side": 72},
        {"minutes": 5, "side": 80},
        {"minutes": 1, "side": 96},
    )

    side: int = 64
    minutes: int = 5

    def check(self) -> None:
        check_side(self.side, least=48)
        if self.minutes not in (1, 5, 10, 15, 20, 30, 60):
            raise UsageError(f"minutes is {self.minutes}; take 1, 5, 10, 15, 20, 30 or 60")

    @property
    def name(self) -> str:
        return "read-clock"

    @property
    def verifier(self) -> ClockTime:
        return ClockTime(self.answer_forms)

    def draw(self, rng: random.Random) -> Clock:
        radius = rng.randint(self.side * 3 // 8, self.side // 2 - 2)
        free = self.side // 2 - 1 - radius
        x, y = (self.side // 2 + rng.randint(-free, free) for _ in range(2))
        minute = rng.randrange(0, 60, self.minutes)
        return Clock(rng.randint(1, 12), minute, radius, x, y, rng.choice(list(COLORS)))

    def key(self, item: Clock) -> str:
        return str(tuple(item))

    def picture(self, item: Clock) -> Picture:
        return draw_clock(item, self.side)

    def question(self, item: Clock) -> str:
        return "What time does the clock show?"

    def answer(self, item: Clock) -> str:
        return f"{item.hour}:{item.minute:02d}"


def draw_clock(clock: Clock, side: int) -> Picture:
    """A face with twelve marks, a short hand for hours and a long one for minutes."""
    pixels = np.full((side, side, 3), BACKGROUND, np.uint8)
    centres = np.arange(side) + 0.5
    distance = np.hypot(centres[:, None] - clock.y, centres - clock.x)
    pixels[distance <= clock.radius] = COLORS[clock.color]
    pixels[distance <= clock.radius * 0.9] = _FACE
    for mark in range(12):
        pixels[_ray(clock, mark / 12, 0.76, 0.88, 1.2, side)] = COLORS["black"]
    hour = (clock.hour % 12 + clock.minute / 60) / 12
    pixels[_ray(clock, clock.minute / 60, -0.08, 0.74, 1.6, side)] = COLORS["blue"]
    pixels[_ray(clock, hour, -0.08, 0.45, 3.0, side)] = COLORS["black"]
    return Picture.from_pixels(pixels)


def _ray(clock: Clock, turn: float, begin: float, end: float, width: float, side: int) -> NDArray[np.bool_]:
    """The pixels of a bar from the centre outwards, at a share of a full turn clockwise from 12. `begin` and `end` are
    shares of the radius."""
    along = np.array([math.sin(2 * math.pi * turn), -math.cos(2 * math.pi * turn)])
    across = np.array([-along[1], along[0]]) * width / 2
    centre, near, far = np.array([clock.x, clock.y]), begin * clock.radius * along, end * clock.radius * along
    corners = np.array([near - across, far - across, far + across, near + across]) + centre
    return rasterize_polygon(corners, (side, side))
