"""Ways to spend compute on a problem, by name."""

from typing import Any

from ponder.reason.strategies.chain import Chain
from ponder.reason.strategies.ensemble import Ensemble

STRATEGIES: dict[str, Any] = {"chain": Chain, "ensemble": Ensemble}

__all__ = ["STRATEGIES", "Chain", "Ensemble"]
