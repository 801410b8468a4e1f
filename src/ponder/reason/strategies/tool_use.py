"""A chain that thinks with tools: it stops at a call, runs it, and goes on from the result (Toolformer: Schick et al.
2023; ToRA: Gou et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponder.errors import Interrupted, PonderError, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.budget import until_exhausted
from ponder.reason.operators.follow_up import fill_template, require_slots
from ponder.reason.operators.generate import (
    add_completion,
    chain_end,
    end_if_sampled,
    insert_text,
    sample_continuations,
)
from ponder.reason.operators.select import set_answer
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.tools import CalculatorTool, PythonTool, Tool, ToolCall
from ponder.reason.tools.tool import has_open_call, last_complete_call
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One chain with at most so many calls. Results are written, not sampled, so training passes them by; a tool's
    errors are results too. `sampling.max_tokens` is for all of it, the results too."""

    tools: tuple[Tool, ...] = (PythonTool(), CalculatorTool())
    max_calls: int = 8
    max_result_chars: int = 4000  # characters of a result
    describe_tools: bool = True  # say in the prompt which tools there are
    sampling: Sampling = Sampling(temperature=0.0, max_tokens=2048)
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if not self.tools or self.max_calls < 1 or self.max_result_chars < 1:
            raise UsageError("a chain with tools needs a tool, and at least 1 call and 1 character of a result")
        for tool in self.tools:
            require_slots("result", tool.result_template, "result")
            if not tool.start_marker or not tool.end_marker:
                raise UsageError(f"{type(tool).__name__} needs the marks that a call begins and ends with")

    def unused(self) -> dict[str, str]:
        return {"guide": "one chain is written, and nobody judges it"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        told = " ".join(tool.description for tool in self.tools) if self.describe_tools else ""
        instruction = "\n".join(filter(None, [self.prompt.instruction, told]))
        root = replace(self.prompt, instruction=instruction).root_step(trace, policy)
        end = chain_end(trace, root)
        with until_exhausted(trace):
            while end == root or not trace.steps[end].done:
                await self._extend_chain(trace, root, end, policy)
                end = chain_end(trace, end)
        set_answer(trace, end_if_sampled(trace, end))

    async def _extend_chain(self, trace: Trace, root: int, end: int, policy: Policy) -> None:
        """Answer a call that stands at the end, or write on."""
        path = trace.path(end)[len(trace.path(root)) :]
        made = [i for i in path if not trace.steps[i].sampled]
        since = path[path.index(made[-1]) + 1 :] if made else path
        text = "".join(trace.steps[i].text for i in since)
        call = next(((t, said) for t in self.tools if (said := last_complete_call(text, t)) is not None), None)
        if call is not None and len(made) < self.max_calls:
            shown = await self._run_tool(trace, path, *call)
            insert_text(trace, end, shown, policy)
            return
        room = self.sampling.max_tokens - sum(len(trace.steps[i].token_ids) for i in path)
        if room < 1:
            trace.steps[end].last = True
            return
        how = replace(self.sampling, max_tokens=room, min_tokens=min(self.sampling.min_tokens, room))
        if len(made) < self.max_calls:
            how = replace(how, stop=(*how.stop, *self._stop_markers(text)))
        (c,) = await sample_continuations(trace, end, policy, how)
        ours = len(made) < self.max_calls and any(mark in c.text for mark in self._stop_markers(text))
        trace.steps[add_completion(trace, end, c)].last = not (c.stop == "stop" and ours)

    def _stop_markers(self, text: str) -> list[str]:
        """Where to stop next: at the end of a call that has begun, or where one begins."""
        begun = [tool.end_marker for tool in self.tools if has_open_call(text, tool)]
        return begun or [tool.start_marker for tool in self.tools]

    async def _run_tool(self, trace: Trace, path: list[int], tool: Tool, said: str) -> str:
        try:
            found = await tool(said, self._previous_calls(trace, path, tool))
        except Interrupted:
            raise
        except PonderError as error:
            found = f"[{error}]"
        except Exception as error:  # the model is told, and may try another way
            found = f"[the tool failed: {type(error).__name__}: {error}]"
        if len(found) > self.max_result_chars:
            half = self.max_result_chars // 2
            found = f"{found[:half]}\n[{len(found) - self.max_result_chars} characters left out]\n{found[len(found) - half :]}"
        # No output can end its own frame, or become a token that ends a turn.
        return fill_template(tool.result_template, result=found.replace("```", "'''").replace("<|", "< |"))

    def _previous_calls(self, trace: Trace, path: list[int], tool: Tool) -> list[ToolCall]:
        """The tool's own calls before this one."""
        calls, text = [], ""
        for i in path:
            step = trace.steps[i]
            if step.sampled:
                text += step.text
                continue
            first = next((t for t in self.tools if last_complete_call(text, t) is not None), None)
            if first is tool:
                calls.append(ToolCall(last_complete_call(text, tool) or "", step.text))
            text = ""
        return calls
