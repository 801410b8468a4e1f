"""One chain of thought: sample one answer; and the loop of strategies that extend one chain part by part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from ponder.protocols import Policy, Scorer
from ponder.reason.budget import until_exhausted
from ponder.reason.operators import generate, set_answer
from ponder.reason.operators.generate import chain_end, end_if_sampled, resume_truncated
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain of thought: sample one answer."""

    n: ClassVar[int] = 1
    sampling: Sampling = Sampling(temperature=0.0)
    prompt: Prompt = PLAIN

    def unused(self) -> dict[str, str]:
        return {"guide": "a chain samples one answer and nothing scores it: best-of-n chooses by a guide"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        root = self.prompt.root_step(trace, policy)
        if not trace.children(root):
            await generate(trace, root, policy, self.sampling, last=True)
        else:
            await resume_truncated(trace, [chain_end(trace, root)], policy, self.sampling)
        set_answer(trace, chain_end(trace, root))


async def grow_chain(
    trace: Trace, root: int, extend: Callable[[int], Awaitable[None]], is_complete: Callable[[int], bool]
) -> None:
    """Extend the chain below `root` until it is complete or the budget is exhausted. Its end is the answer."""
    end = chain_end(trace, root)
    with until_exhausted(trace):
        while not is_complete(end):
            await extend(end)
            end = chain_end(trace, end)
    set_answer(trace, end_if_sampled(trace, end))
