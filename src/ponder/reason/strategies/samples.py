"""Independent samples: GRPO's group, and what votes and selections choose from."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators import generate
from ponder.reason.operators.generate import chain_end, resume_truncated
from ponder.reason.prompts import PLAIN, Prompt
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class Samples:
    n: int = 8
    sampling: Sampling = Sampling()
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"n is {self.n}; give at least 1")

    def unused(self) -> dict[str, str]:
        return {"guide": "samples chooses nothing: best-of-n chooses by a guide, majority-vote can weight votes by one"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        root = self.prompt.root_step(trace, policy)
        await resume_truncated(trace, [chain_end(trace, i) for i in trace.children(root)], policy, self.sampling)
        missing = self.n - len(trace.children(root))
        if missing > 0:
            await generate(trace, root, policy, self.sampling, missing, last=True)
