"""A chain that thinks with tools: it stops at a call, runs it, and goes on from the result (Toolformer: Schick et al.
2023; ToRA: Gou et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponder.errors import Interrupted, PonderError, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.chained import spoken, tip
from ponder.reason.operators.generate import add, draw, write
from ponder.reason.operators.select import give
from ponder.reason.operators.until import until_spent
from ponder.reason.operators.wording import fill, needs
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.tools import Calculator, Call, Python, Tool
from ponder.reason.tools.tool import is_open, last_call
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class ToolChain:
    """One chain with at most so many calls. Results are written, not sampled, so training passes them by; a tool's
    errors are results too. `sampling.max_tokens` is for all of it, the results too."""

    tools: tuple[Tool, ...] = (Python(), Calculator())
    calls: int = 8
    longest: int = 4000  # characters of a result
    tell: bool = True  # say in the prompt which tools there are
    sampling: Sampling = Sampling(temperature=0.0, max_tokens=2048)
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if not self.tools or self.calls < 1 or self.longest < 1:
            raise UsageError("a chain with tools needs a tool, and at least 1 call and 1 character of a result")
        for tool in self.tools:
            needs("result", tool.shown, "result")
            if not tool.begin or not tool.end:
                raise UsageError(f"{type(tool).__name__} needs the marks that a call begins and ends with")

    def unused(self) -> dict[str, str]:
        return {"guide": "one chain is written, and nobody judges it"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        told = " ".join(tool.about for tool in self.tools) if self.tell else ""
        instruction = "\n".join(filter(None, [self.prompt.instruction, told]))
        root = replace(self.prompt, instruction=instruction).root(trace, policy)
        end = tip(trace, root)
        with until_spent(trace):
            while end == root or not trace.steps[end].done:
                await self._go_on(trace, root, end, policy)
                end = tip(trace, end)
        give(trace, spoken(trace, end))

    async def _go_on(self, trace: Trace, root: int, end: int, policy: Policy) -> None:
        """Answer a call that stands at the end, or write on."""
        path = trace.path(end)[len(trace.path(root)) :]
        made = [i for i in path if not trace.steps[i].sampled]
        since = path[path.index(made[-1]) + 1 :] if made else path
        text = "".join(trace.steps[i].text for i in since)
        call = next(((t, said) for t in self.tools if (said := last_call(text, t)) is not None), None)
        if call is not None and len(made) < self.calls:
            shown = await self._result(trace, path, *call)
            write(trace, end, shown, policy)
            return
        room = self.sampling.max_tokens - sum(len(trace.steps[i].token_ids) for i in path)
        if room < 1:
            trace.steps[end].last = True
            return
        how = replace(self.sampling, max_tokens=room, min_tokens=min(self.sampling.min_tokens, room))
        if len(made) < self.calls:
            how = replace(how, stop=(*how.stop, *self._marks(text)))
        (c,) = await draw(trace, end, policy, how)
        ours = len(made) < self.calls and any(mark in c.text for mark in self._marks(text))
        trace.steps[add(trace, end, c)].last = not (c.stop == "stop" and ours)

    def _marks(self, text: str) -> list[str]:
        """Where to stop next: at the end of a call that has begun, or where one begins."""
        begun = [tool.end for tool in self.tools if is_open(text, tool)]
        return begun or [tool.begin for tool in self.tools]

    async def _result(self, trace: Trace, path: list[int], tool: Tool, said: str) -> str:
        try:
            found = await tool(said, self._earlier(trace, path, tool))
        except Interrupted:
            raise
        except PonderError as error:
            found = f"[{error}]"
        except Exception as error:  # the model is told, and may try another way
            found = f"[the tool failed: {type(error).__name__}: {error}]"
        if len(found) > self.longest:
            half = self.longest // 2
            found = f"{found[:half]}\n[{len(found) - self.longest} characters left out]\n{found[len(found) - half :]}"
        # No output can end its own frame, or become a token that ends a turn.
        return fill(tool.shown, result=found.replace("```", "'''").replace("<|", "< |"))

    def _earlier(self, trace: Trace, path: list[int], tool: Tool) -> list[Call]:
        """The tool's own calls before this one."""
        calls, text = [], ""
        for i in path:
            step = trace.steps[i]
            if step.sampled:
                text += step.text
                continue
            first = next((t for t in self.tools if last_call(text, t) is not None), None)
            if first is tool:
                calls.append(Call(last_call(text, tool) or "", step.text))
            text = ""
        return calls
