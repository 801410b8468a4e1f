"""One question answered with tools: the same `solve`, in an environment of tools and without a verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ponder.pipelines.solve import solve
from ponder.protocols import Policy, Strategy
from ponder.reason.episodes import EpisodeLimits
from ponder.reason.tools.call_parser import parse_answer
from ponder.reason.tools.function_tool import ToolFunction, check_tools
from ponder.reason.tools.tool_counts import result_texts
from ponder.tasks.environments.episode_reward import new_episodes
from ponder.tasks.environments.tool_task import DEFAULT_MAX_TURNS, open_tools
from ponder.types import FunctionCall, Problem, Step, Trace, prompt_trace


async def solve_with_tools(
    problem: Problem,
    strategy: Strategy,
    policy: Policy,
    tools: Sequence[str | ToolFunction],
    max_turns: int = DEFAULT_MAX_TURNS,
    trace: Trace | None = None,
    **more: Any,
) -> Trace:
    """`solve` with these tools on offer. `trace`: continue an earlier one, of the same problem and tools."""
    episodes = new_episodes(problem, open_tools(tools), EpisodeLimits(max_turns))
    try:
        asked = replace(problem, messages=await episodes.begin())
        prompt = episodes.encode(asked.messages, policy)
        trace = prompt_trace(asked, prompt) if trace is None else trace
        if len(trace.steps) == 1:
            trace.steps[0] = Step(None, asked.question, prompt)
        trace.episodes = episodes
        return await solve(asked, strategy, policy, trace=trace, **more)
    finally:
        await episodes.close()


@dataclass(frozen=True)
class DialogueTurn:
    """What the policy wrote in a turn, and what came back. The last turn has no results."""

    content: str
    calls: tuple[FunctionCall, ...]
    results: tuple[str, ...]


def dialogue(trace: Trace, step: int, tools: Sequence[str | ToolFunction]) -> list[DialogueTurn]:
    """The turns of an episode with tools up to this step."""
    names = [tool.name for tool in check_tools(tools)]
    turns: list[DialogueTurn] = []
    for i in trace.conversation(step):
        here = trace.steps[i]
        if here.sampled:
            parsed = parse_answer(here.text, names)
            turns.append(DialogueTurn(parsed.content, parsed.calls, ()))
        elif here.turn and turns:
            turns[-1] = replace(turns[-1], results=tuple(result_texts(here.text)))
    return turns
