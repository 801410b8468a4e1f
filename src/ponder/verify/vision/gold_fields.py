"""Read the gold answer of a problem about an image. A fault in it is bad data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ponder.verify.base import bad_data, repr_for_reason
from ponder.verify.vision import geometry
from ponder.verify.vision.geometry import InvalidGeometry, Size

T = TypeVar("T")


def gold_field(gold: Any, key: str) -> Any:
    if not isinstance(gold, Mapping) or key not in gold:
        bad_data(f"{repr_for_reason(gold)} does not hold {key!r}")
    return gold[key]


def parse_gold(read: Callable[[], T]) -> T:
    """Parse a part of the gold answer."""
    try:
        return read()
    except InvalidGeometry as why:
        bad_data(str(why))


def image_size(gold: Any) -> Size | None:
    size = gold.get("size") if isinstance(gold, Mapping) else None
    return None if size is None else parse_gold(lambda: geometry.parse_size(size))
