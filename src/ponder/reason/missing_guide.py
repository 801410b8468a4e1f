"""Why a strategy cannot run without a guide, known before a model is loaded."""

from __future__ import annotations

from typing import Any

from ponder.reason.inner_strategies import inner_strategies


def missing_guide(strategy: Any) -> str:
    """One sentence if this strategy, or one inside it, needs a guide; else empty. A strategy says so itself, in a
    method `missing_guide`."""
    own: str = strategy.missing_guide() if hasattr(strategy, "missing_guide") else ""
    return own or next((why for inner in inner_strategies(strategy).values() if (why := missing_guide(inner))), "")
