"""Small operators on a trace: generate, evaluate, vote and select."""

from ponder.reason.operators.evaluate import evaluate
from ponder.reason.operators.generate import generate
from ponder.reason.operators.select import best, majority

__all__ = ["best", "evaluate", "generate", "majority"]
