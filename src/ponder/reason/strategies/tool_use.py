"""Tool use in one chain: stop at a call, run the tool, insert the result and continue (Toolformer: Schick et al. 2023;
ToRA: Gou et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponder.errors import Interrupted, PonderError, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.follow_up import fill_template, require_slots
from ponder.reason.operators.generate import (
    add_completion,
    insert_text,
    sample_continuations,
)
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.strategies.chain import grow_chain
from ponder.reason.tools import CalculatorTool, PythonTool, Tool, ToolCall
from ponder.reason.tools.tool import has_open_call, last_complete_call
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One chain with at most `max_calls` tool calls. Results are inserted, not sampled, so training does not learn
    them; a tool's errors are results too. `sampling.max_tokens` limits the whole chain, results included."""

    tools: tuple[Tool, ...] = (PythonTool(), CalculatorTool())
    max_calls: int = 8
    max_result_chars: int = 4000
    describe_tools: bool = True  # name the tools in the prompt
    sampling: Sampling = Sampling(temperature=0.0, max_tokens=2048)
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if not self.tools or self.max_calls < 1 or self.max_result_chars < 1:
            raise UsageError("tool use needs a tool, and max_calls and max_result_chars of at least 1")
        for tool in self.tools:
            require_slots("result", tool.result_template, "result")
            if not tool.start_marker or not tool.end_marker:
                raise UsageError(f"{type(tool).__name__} needs the start and end markers of a call")

    def unused(self) -> dict[str, str]:
        return {"guide": "one chain is sampled, and nothing scores it"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        descriptions = " ".join(tool.description for tool in self.tools) if self.describe_tools else ""
        instruction = "\n".join(filter(None, [self.prompt.instruction, descriptions]))
        root = replace(self.prompt, instruction=instruction).root_step(trace, policy)
        await grow_chain(
            trace,
            root,
            lambda end: self._extend_chain(trace, root, end, policy),
            lambda end: end != root and trace.steps[end].done,
        )

    async def _extend_chain(self, trace: Trace, root: int, end: int, policy: Policy) -> None:
        """Run the call at the end of the chain, or sample on."""
        path = trace.path(end)[len(trace.path(root)) :]
        outputs = [i for i in path if not trace.steps[i].sampled]
        since = path[path.index(outputs[-1]) + 1 :] if outputs else path
        text = "".join(trace.steps[i].text for i in since)
        call = next(
            ((t, arguments) for t in self.tools if (arguments := last_complete_call(text, t)) is not None), None
        )
        if call is not None and len(outputs) < self.max_calls:
            shown = await self._run_tool(trace, path, *call)
            insert_text(trace, end, shown, policy)
            return
        room = self.sampling.max_tokens - sum(len(trace.steps[i].token_ids) for i in path)
        if room < 1:
            trace.steps[end].last = True
            return
        how = replace(self.sampling, max_tokens=room, min_tokens=min(self.sampling.min_tokens, room))
        if len(outputs) < self.max_calls:
            how = replace(how, stop=(*how.stop, *self._stop_markers(text)))
        (c,) = await sample_continuations(trace, end, policy, how)
        ours = len(outputs) < self.max_calls and any(mark in c.text for mark in self._stop_markers(text))
        trace.steps[add_completion(trace, end, c)].last = not (c.stop == "stop" and ours)

    def _stop_markers(self, text: str) -> list[str]:
        """Where to stop next: at the end marker of an open call, or at a start marker."""
        open_markers = [tool.end_marker for tool in self.tools if has_open_call(text, tool)]
        return open_markers or [tool.start_marker for tool in self.tools]

    async def _run_tool(self, trace: Trace, path: list[int], tool: Tool, arguments: str) -> str:
        try:
            output = await tool(arguments, self._previous_calls(trace, path, tool))
        except Interrupted:
            raise
        except PonderError as error:
            output = f"[{error}]"
        except Exception as error:  # the model reads the error and may try another way
            output = f"[the tool failed: {type(error).__name__}: {error}]"
        if len(output) > self.max_result_chars:
            half = self.max_result_chars // 2
            cut = len(output) - self.max_result_chars
            output = f"{output[:half]}\n[{cut} characters left out]\n{output[len(output) - half :]}"
        # No output can end its own frame, or become a token that ends a turn.
        return fill_template(tool.result_template, result=output.replace("```", "'''").replace("<|", "< |"))

    def _previous_calls(self, trace: Trace, path: list[int], tool: Tool) -> list[ToolCall]:
        """The earlier calls of this tool."""
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
