"""One chain of thought: write once, from the question to the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ponder.protocols import Policy, Scorer
from ponder.reason.operators import generate, give
from ponder.reason.operators.chained import tip
from ponder.reason.operators.complete import complete
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class Chain:
    n: ClassVar[int] = 1
    sampling: Sampling = Sampling(temperature=0.0)
    prompt: Prompt = PLAIN

    def unused(self) -> dict[str, str]:
        return {"guide": "a chain is written once, and nobody judges it: best-of chooses by a guide"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        root = self.prompt.root(trace, policy)
        if not trace.children(root):
            await generate(trace, root, policy, self.sampling, last=True)
        else:
            await complete(trace, [tip(trace, root)], policy, self.sampling)
        give(trace, tip(trace, root))
