"""ponder trains, runs and measures reasoning language models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponder.types import Completion, Cost, Problem, Sampling, Score, Step, Trace

__version__ = "0.1.0"
__all__ = ["Completion", "Cost", "Problem", "Sampling", "Score", "Step", "Trace", "__version__"]


def __getattr__(name: str) -> Any:
    """The types come when they are asked for: numpy takes longer to import than a user takes to press Ctrl-C."""
    if name in __all__:
        from ponder import types

        return getattr(types, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
