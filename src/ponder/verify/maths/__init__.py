"""Judge the final answer of a mathematical problem."""

from ponder.verify.maths.scorer import MathAnswer

__all__ = ["MathAnswer"]
