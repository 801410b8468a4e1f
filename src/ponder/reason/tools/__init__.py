"""Tools for use inside a thought: a calculator, Python in the sandbox, and a checker of the sums in the steps."""

from ponder.reason.tools.calculator import Calculator
from ponder.reason.tools.checker import SumChecker
from ponder.reason.tools.python import Python
from ponder.reason.tools.tool import Call, Tool

__all__ = ["Calculator", "Call", "Python", "SumChecker", "Tool"]
