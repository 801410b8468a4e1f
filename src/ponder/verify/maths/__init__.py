"""The verifier of the final answer of a mathematical problem."""

from ponder.verify.maths.math_answer import MathAnswer

__all__ = ["MathAnswer"]
