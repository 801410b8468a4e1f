"""The process that runs environments of the user's, several episodes at a time.

It reads a JSON line for each call and answers each with one: first what to open, then reset, act, close and the
others by the number of an episode (see process_environment.py). Whatever user code prints goes to the standard error.
It ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from ponder.cluster.process_host import end_with_launcher
from ponder.cluster.slot_connection import is_placed, join
from ponder.errors import PonderError
from ponder.protocols import Environment
from ponder.reason.episodes import check_turn
from ponder.reason.tools.tool_environment import ToolEnvironment
from ponder.registry import import_object
from ponder.tasks.environments.user_environment import open_user_environment
from ponder.types import Action, FunctionCall, Problem, Turn, ids
from ponder.user_errors import describe_error

MAX_REPLY_BYTES = 1 << 20

_PR_SET_PDEATHSIG = 1


def main() -> None:
    if is_placed():
        end_with_launcher()
        connection = join(os.environ)
        serve(connection.makefile("rb"), connection.makefile("wb"))
        return
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what user code prints must not be taken for a reply
    calls = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    end_with_parent(int(sys.argv[1]))
    serve(calls, replies)


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, also in the middle of a call. Elsewhere than on Linux it
    ends when it next waits for a call."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def serve(calls: BinaryIO, replies: BinaryIO) -> None:
    open_environment: Callable[[], Environment] | None = None
    episodes: dict[int, Any] = {}
    with asyncio.Runner() as runner:
        for line in calls:
            call = json.loads(line)
            try:
                if open_environment is None:
                    open_environment = opener(call)
                    reply: dict[str, Any] = {}
                else:
                    reply = run_call(call, episodes, open_environment, runner)
                text = json.dumps(reply, allow_nan=False)
                if len(text) > MAX_REPLY_BYTES:
                    text = json.dumps({"error": f"it answered with {len(text):,} bytes; {MAX_REPLY_BYTES:,} at most"})
            except BaseException as error:
                text = json.dumps({"error": error_text(error)})
            replies.write(text.encode() + b"\n")
            replies.flush()


def opener(spec: dict[str, Any]) -> Callable[[], Environment]:
    """What makes the environments that were asked for.

    Their files are imported now, since that may take longer than a call. What cannot be imported fails in the call.
    """
    names = [*spec.get("tools", ()), *spec.get("rewards", ()), spec.get("given", "")]
    for name in names:
        if isinstance(name, str) and ":" in name:
            with contextlib.suppress(Exception, SystemExit):
                import_object(name)
    if "tools" in spec:
        return lambda: ToolEnvironment(spec["tools"])
    return lambda: open_user_environment(**spec)


def run_call(
    call: dict[str, Any], episodes: dict[int, Any], open_environment: Callable[[], Environment], runner: asyncio.Runner
) -> dict[str, Any]:
    number, method = call["episode"], call["method"]
    if method == "close":
        environment = episodes.pop(number, None)
        close = getattr(environment, "close", None)
        if callable(close):
            _result(close(), runner)
        return {}
    if method == "gold":
        gold = getattr(episodes[number], "gold", None)
        return {"gold": str(_result(gold(), runner)) if callable(gold) else None}
    if method == "copy":
        copy = getattr(episodes[number], "copy", None)
        if callable(copy):
            episodes[call["to"]] = _result(copy(), runner)
        return {"copied": callable(copy)}
    if method == "truncate":
        truncate = getattr(episodes[number], "truncate", None)
        turn = _result(truncate(), runner) if callable(truncate) else None
        return {"turn": None if turn is None else encode_turn(check_turn(turn, episodes[number]))}
    if method == "reset":
        episodes[number] = open_environment()
        result = episodes[number].reset(decode_problem(call["problem"]), call["seed"])
    else:
        result = episodes[number].act(decode_action(call["action"]))
    return encode_turn(check_turn(_result(result, runner), episodes[number]))


def _result(value: Any, runner: asyncio.Runner) -> Any:
    async def wait() -> Any:
        return await value

    return runner.run(wait()) if inspect.isawaitable(value) else value


def error_text(error: BaseException) -> str:
    return str(error)[:1000] if isinstance(error, PonderError) else f"it raised {describe_error(error)}"


# Values that cross, as JSON.


def encode_problem(problem: Problem) -> dict[str, Any]:
    messages = [dict(message) for message in problem.messages]
    return {"id": problem.id, "messages": messages, "answer": problem.answer, "tags": dict(problem.tags)}


def decode_problem(data: dict[str, Any]) -> Problem:
    return Problem(data["id"], tuple(data["messages"]), data["answer"], data["tags"])


def encode_action(action: Action) -> dict[str, Any]:
    calls = [[call.name, call.arguments] for call in action.tool_calls]
    tokens = action.token_ids.tolist()
    return {"text": action.text, "content": action.content, "calls": calls, "tokens": tokens, "cut": action.truncated}


def decode_action(data: dict[str, Any]) -> Action:
    calls = tuple(FunctionCall(name, arguments) for name, arguments in data["calls"])
    return Action(data["text"], data["content"], calls, ids(data["tokens"]), data["cut"])


def encode_turn(turn: Turn) -> dict[str, Any]:
    reward = None if turn.reward is None else float(turn.reward)
    tools = [dict(tool) for tool in turn.tools]
    messages = [dict(message) for message in turn.messages]
    return {"messages": messages, "tools": tools, "reward": reward, "done": turn.done, "reason": turn.reason}


def decode_turn(data: Any) -> Turn:
    """The turn that a worker sent; ValueError where it is none."""
    wanted = {"messages": list, "tools": list, "reward": float | None, "done": bool, "reason": str}
    if not isinstance(data, dict) or set(data) != set(wanted):
        raise ValueError("it answered with no turn")
    for name, kind in wanted.items():
        if not isinstance(data[name], kind):
            raise ValueError(f"{name} of its turn is of type {type(data[name]).__name__}")
    return Turn(tuple(data["messages"]), tuple(data["tools"]), data["reward"], data["done"], data["reason"])
