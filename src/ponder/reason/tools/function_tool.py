"""Functions that a model may call: found by name, called with checked arguments, their results as text."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ponder import registry, user_calls
from ponder.errors import Interrupted, UsageError
from ponder.reason.tools.calculator import calculate
from ponder.reason.tools.function_schema import BadArguments, FunctionSignature, function_signature
from ponder.reason.tools.python_tool import PythonTool
from ponder.reason.tools.tool import ToolCall
from ponder.user_errors import describe_error
from ponder.user_modules import module_of
from ponder.validate import short_repr

ToolFunction = Callable[..., Any]

ERROR_MARK = "[tool error: "  # a failed call's result begins with it, and no other result contains it
MAX_RESULT_CHARS = 4000

# Text that a tokenizer may take for a token that ends a turn, or a template for the frame of a result.
_TURN_MARKS = re.compile(
    r"<(?=[|｜])|<(?=/?(?:s|eos|bos|start_of_turn|end_of_turn|tool_call|tool_response|think)>)|\[(?=/?INST\])"
)


def calculator(expression: str) -> str:
    """Calculate the exact value of an expression in numbers, + - * / and brackets.

    Args:
        expression: the expression, such as 12 * (3 + 4)
    """
    return calculate(expression)


@dataclass
class PythonSession:
    """The Python tool of one episode: names that earlier calls defined are there in later ones."""

    name = "python"
    calls: list[ToolCall] = field(default_factory=list)

    async def __call__(self, code: str) -> str:
        """Run Python code. The result is what it prints, and the value of its last line.

        Args:
            code: the program
        """
        result = await PythonTool()(code, self.calls)
        self.calls.append(ToolCall(code, result))
        return result

    def copy(self) -> PythonSession:
        return PythonSession(list(self.calls))


# A class makes one tool for each episode.
NAMED_TOOLS: dict[str, ToolFunction] = {"calculator": calculator, "python": PythonSession}


def tool_code(name: str) -> str:
    """The code that a tool's name stands for; empty for one of ponder's own."""
    return "" if name in NAMED_TOOLS else name


def find_tool(given: str | ToolFunction) -> ToolFunction:
    """A tool by name (`NAMED_TOOLS`, `module:name`, `file.py:name`), or as it is."""
    tool = registry.lookup("tool", given, NAMED_TOOLS) if isinstance(given, str) else given
    if not callable(tool):
        raise UsageError(f"{short_repr(given)} is {type(tool).__name__}, not a function: it cannot be a tool")
    return tool


@dataclass(frozen=True)
class FunctionTool:
    """A function with its signature. Whatever a call does, its result is a text."""

    function: ToolFunction
    signature: FunctionSignature

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def can_copy(self) -> bool:
        """Whether the tool in its present state can be had twice. A function has no state of its own."""
        return inspect.isfunction(self.function) or callable(getattr(self.function, "copy", None))

    def copy(self) -> FunctionTool:
        return self if inspect.isfunction(self.function) else replace(self, function=self.function.copy())  # type: ignore[attr-defined]

    async def call(self, arguments: str) -> str:
        """The result of a call, or what was wrong with it."""
        try:
            values = self.signature.parse_arguments(arguments)
        except BadArguments as error:
            return tool_error(str(error))
        what = f"tool {module_of(self.function) or 'python'}:{self.name}"
        try:
            with user_calls.track(what, sync=True, is_user_code=True):
                result = self.function(**values)
            if inspect.isawaitable(result):
                with user_calls.track(what, is_user_code=True):
                    result = await result
        except Interrupted:
            raise
        except (Exception, SystemExit) as error:  # the model reads it and may try another way
            return tool_error(f"{self.name} raised {describe_error(error)}")
        return result_text(result)


def function_tool(function: ToolFunction, name: str = "") -> FunctionTool:
    """The tool that a function is, or an object of this class."""
    made = make_tool(function)
    return FunctionTool(made, function_signature(made, name))


def make_tool(function: ToolFunction) -> ToolFunction:
    if not isinstance(function, type):
        return function
    try:
        return function()
    except TypeError as error:
        raise UsageError(f"the tool {function.__name__} cannot be made without settings: {error}") from None


def check_tools(functions: Sequence[str | ToolFunction]) -> list[FunctionTool]:
    """The tools that were named, with one name each."""
    tools = [function_tool(find_tool(given)) for given in functions]
    names = [tool.name for tool in tools]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two tools are named {repeated!r}: a call would not say which; rename one")
    return tools


def tool_error(text: str) -> str:
    """The result of a call that failed."""
    return f"{ERROR_MARK}{shorten(defuse(text))}]"


def result_text(result: Any) -> str:
    """A function's result as the text that the model reads: JSON, unless it is a string."""
    if not isinstance(result, str):
        try:
            result = json.dumps(result, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            result = str(result)
    return shorten(defuse(result))


def shorten(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """The text, or its two ends."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :]}"


def defuse(text: str) -> str:
    """No result can end its own frame, become a token that ends a turn, or look like a failed call."""
    if len(text) > 2 * MAX_RESULT_CHARS:  # what is left out anyway
        text = shorten(text, 2 * MAX_RESULT_CHARS)
    return _TURN_MARKS.sub(lambda mark: f"{mark[0]} ", text).replace(ERROR_MARK, "[ " + ERROR_MARK[1:])
