"""Tools for use while thinking: a calculator, Python in the sandbox, and a checker of the arithmetic in steps."""

from ponder.reason.tools.arithmetic_checker import ArithmeticChecker
from ponder.reason.tools.calculator import CalculatorTool
from ponder.reason.tools.python_tool import PythonTool
from ponder.reason.tools.tool import Tool, ToolCall

__all__ = ["ArithmeticChecker", "CalculatorTool", "PythonTool", "Tool", "ToolCall"]
