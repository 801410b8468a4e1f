"""STaR (Zelikman et al. 2022): sample answers; if none is right, give the answer as a hint and ask for the reasoning.

The hint is in a follow-up prompt. Harvested rows use the problem's own prompt, so they do not contain the hint.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponder.errors import UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators import evaluate, generate
from ponder.reason.prompts import Prompt
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class STaR:
    n: int = 4
    sampling: Sampling = Sampling()
    hint: str = "(The answer is {answer}. Explain how to get there, and state it at the end.)"
    rationalise: bool = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"n is {self.n}; give at least 1")
        if self.rationalise and "{answer}" not in self.hint:
            raise UsageError("the hint must say where the answer goes: write {answer} in it")

    def unused(self) -> dict[str, str]:
        return {} if self.rationalise else {"hint": "no hint is given: give rationalise=true"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        if scorer is None or trace.problem.answer is None:
            raise UsageError("STaR keeps what reaches the gold answer: collect with guide='oracle'")
        steps = await self._sample(trace, 0, policy, scorer)
        right = _first_right(trace, steps, scorer.name)
        if right is None and self.rationalise:
            hint = self.hint.replace("{answer}", str(trace.problem.answer))
            steps = await self._sample(trace, Prompt(hint).root_step(trace, policy), policy, scorer)
            right = _first_right(trace, steps, scorer.name)
        trace.chosen = right

    async def _sample(self, trace: Trace, root: int, policy: Policy, scorer: Scorer) -> list[int]:
        missing = self.n - len(trace.children(root))
        if missing > 0:
            await generate(trace, root, policy, self.sampling, missing, last=True)
        steps = list(trace.children(root))
        await evaluate(trace, [i for i in steps if scorer.name not in trace.steps[i].scores], scorer)
        return steps


def _first_right(trace: Trace, steps: list[int], scorer: str) -> int | None:
    return next((i for i in steps if trace.score(i, scorer) == 1.0), None)
