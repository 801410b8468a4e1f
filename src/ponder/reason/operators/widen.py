"""Progressive widening: the more often a step is visited, the more ways to go on from it are tried."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ponder.errors import UsageError


@dataclass(frozen=True, slots=True)
class ProgressiveWidening:
    """A step visited n times may have ceil(k n^alpha) children (Coulom 2007)."""

    k: float = 2.0
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not (self.k > 0 and 0 <= self.alpha <= 1):
            raise UsageError(f"widening has k {self.k} and alpha {self.alpha}: k > 0, alpha within 0 to 1")

    def max_children(self, visits: int) -> int:
        return math.ceil(round(self.k * max(1, visits) ** self.alpha, 9))
