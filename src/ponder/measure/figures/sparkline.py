"""A curve as one line of text."""

from __future__ import annotations

import math
from collections.abc import Iterable

BARS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Iterable[float | None], width: int | None = None, low: float | None = None, high: float | None = None
) -> str:
    """One bar per value; a gap where it is None or not finite.

    `low` and `high` fix the scale (0 and 1 for a reward, say); else it spans the values. With `width`, longer
    curves are averaged down to that many bars.
    """
    points = [v if v is not None and math.isfinite(v) else None for v in values]
    if width is not None and len(points) > width:
        points = [_mean(points[i * len(points) // width : (i + 1) * len(points) // width]) for i in range(width)]
    known = [v for v in points if v is not None]
    if not known:
        return " " * len(points)
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    return "".join(" " if v is None else _bar(v, bottom, top) for v in points)


def _bar(value: float, bottom: float, top: float) -> str:
    if top <= bottom:  # a flat curve is neither low nor high
        return BARS[3]
    share = (value - bottom) / (top - bottom)
    return BARS[min(max(int(share * len(BARS)), 0), len(BARS) - 1)]


def _mean(points: list[float | None]) -> float | None:
    known = [v for v in points if v is not None]
    return sum(known) / len(known) if known else None
