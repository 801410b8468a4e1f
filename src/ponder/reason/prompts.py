"""How a question is put: as it stands, with worked examples, with a request to think or not to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.protocols import Policy
from ponder.reason.operators.generate import ask
from ponder.types import Message, Trace


@dataclass(frozen=True, slots=True)
class Prompt:
    """Changes the conversation that a problem is; with nothing set, it stays as it is."""

    instruction: str = ""  # said after the question
    examples: tuple[tuple[str, str], ...] = ()  # questions and answers, before it
    system: str = ""

    def messages(self, given: Sequence[Message]) -> list[Message]:
        out = [dict(m) for m in given]
        if self.system:
            if out and out[0]["role"] == "system":
                out[0]["content"] = f"{out[0]['content']}\n\n{self.system}"
            else:
                out.insert(0, {"role": "system", "content": self.system})
        first = 1 if out and out[0]["role"] == "system" else 0
        turns = (t for q, a in self.examples for t in (("user", q), ("assistant", a)))
        out[first:first] = [{"role": role, "content": text} for role, text in turns]
        if self.instruction and out:
            out[-1]["content"] = f"{out[-1]['content']}\n{self.instruction}"
        return list(out)

    def root(self, trace: Trace, policy: Policy) -> int:
        """The step that answers go on from: the problem's own prompt, or this one, which is added once."""
        if self == Prompt():
            return 0
        encoded = policy.encode(self.messages(trace.problem.messages))
        for i, step in enumerate(trace.steps):
            if step.parent is None and len(step.token_ids) == len(encoded) and (step.token_ids == encoded).all():
                return i
        return ask(trace, self.messages(trace.problem.messages), policy)


PLAIN = Prompt()
STEP_BY_STEP = Prompt("Let's think step by step.")  # Kojima et al. 2022
DIRECT = Prompt("Give only the final answer, without explanation.")
