"""ponder trains, runs and measures reasoning language models."""

from ponder.types import Completion, Cost, Problem, Sampling, Score, Step, Trace

__version__ = "0.1.0"
__all__ = ["Completion", "Cost", "Problem", "Sampling", "Score", "Step", "Trace", "__version__"]
