"""An environment of tools: every call of the policy's turn is run, and the results are the next turn. A turn without a
call ends the episode and is the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

from ponder.errors import NoGoldAnswer, UsageError
from ponder.reason.tools.call_parser import END_MARK, START_MARK
from ponder.reason.tools.function_tool import ToolFunction, check_tools, tool_error
from ponder.types import Action, FunctionCall, Message, Problem, Turn

MAX_CALLS_PER_TURN = 16

GoldTurns = Callable[[Problem], Sequence[str]]  # the texts of turns that answer a problem well


class ToolEnvironment:
    """Offers functions as tools: with type hints and a docstring, or the names of some (`find_tool`).

    `gold_turns` says how a problem is answered well, for fine-tuning.
    """

    def __init__(self, functions: Collection[str | ToolFunction], gold_turns: GoldTurns | None = None) -> None:
        if isinstance(functions, str) or not functions:
            raise UsageError("give at least one tool, as a tuple of functions or of names")
        self.functions, self.gold_turns = tuple(functions), gold_turns
        self.tools = {tool.name: tool for tool in check_tools(self.functions)}
        self.problem: Problem | None = None
        self.turns = 0
        self._has_begun = False

    def reset(self, problem: Problem, seed: int) -> Turn:
        if self._has_begun:  # another episode: tools with a state begin anew
            self.tools = {tool.name: tool for tool in check_tools(self.functions)}
        self._has_begun = True
        self.problem = None if self.gold_turns is None else problem  # it has the answer
        self.turns = 0
        return Turn(tools=tuple(tool.signature.schema for tool in self.tools.values()))

    def gold(self) -> str:
        """The next one of the gold turns; after the last one, that again."""
        if self.gold_turns is None or self.problem is None:
            raise NoGoldAnswer("these tools come without gold turns, so there is no good next action to imitate")
        turns = self.gold_turns(self.problem)
        return turns[min(self.turns, len(turns) - 1)]

    async def act(self, action: Action) -> Turn:
        self.turns += 1
        results = [await self._result(call, at) for at, call in enumerate(action.tool_calls)]
        if START_MARK in action.content:
            results.append(_message(tool_error(call_problem(action, self.tools))))
        return Turn(tuple(results)) if results else Turn(done=True)

    async def _result(self, call: FunctionCall, at: int) -> Message:
        if at >= MAX_CALLS_PER_TURN:
            return _message(tool_error(f"not run: a turn has at most {MAX_CALLS_PER_TURN} calls"), call.name)
        return _message(await self.tools[call.name].call(call.arguments), call.name)

    @property
    def copy(self) -> Callable[[], ToolEnvironment] | None:
        """Makes an independent environment in the same state; None where a tool's state cannot be copied."""
        return self._copy if all(tool.can_copy for tool in self.tools.values()) else None

    def _copy(self) -> ToolEnvironment:
        other = ToolEnvironment.__new__(ToolEnvironment)
        other.functions, other.gold_turns = self.functions, self.gold_turns
        other.problem, other.turns, other._has_begun = self.problem, self.turns, self._has_begun
        other.tools = {name: tool.copy() for name, tool in self.tools.items()}
        return other

    def close(self) -> None:
        for tool in self.tools.values():
            close = getattr(tool.function, "close", None)
            if callable(close):
                close()


def call_problem(action: Action, names: Collection[str]) -> str:
    """Why the text after the first mark is no call."""
    text = action.content.partition(START_MARK)[2].partition(END_MARK)[0].strip()
    form = 'write {"name": "NAME", "arguments": {...}} between the marks'
    if action.truncated and END_MARK not in action.content.partition(START_MARK)[2]:
        return "the call was cut at the turn's token limit: write less before it"
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"the call is not JSON ({error}): {form}"
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return f"the call has no name: {form}"
    if call["name"] not in names:
        return f"there is no tool {call['name'][:80]!r}, only {', '.join(names)}"
    return f"the arguments of the call are no JSON object: {form}"


def _message(text: str, name: str = "") -> Message:
    return {"role": "tool", "content": text, **({"name": name} if name else {})}
