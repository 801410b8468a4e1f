"""The verifier of the final answer of a mathematical problem."""

from ponder.verify.maths.verifier import MathAnswer

__all__ = ["MathAnswer"]
