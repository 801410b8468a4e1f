"""A policy that answers by a table, for what a random model never writes: calls of tools in its own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.serve.served_models import ServedModel, ServedModels
from ponder.types import Completion, Cost, Ids, Message, Sampling, ids


@dataclass
class ScriptedPolicy:
    """A token is a code point. The answer belongs to the first key that the prompt has; the last one should be ""."""

    answers: dict[str, str]

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids(ord(c) for m in messages for c in f"[{m['role']}] {m['content']}\n")

    def tokens(self, text: str) -> Ids:
        return ids(map(ord, text))

    def text(self, tokens: Ids) -> str:
        return "".join(map(chr, tokens))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        prompt = self.text(prefix)
        answer = next(text for key, text in self.answers.items() if key in prompt)
        text = answer[: sampling.max_tokens]
        stop = "length" if len(answer) > len(text) else "eos"
        tokens = ids(map(ord, text))
        cost = Cost(len(prefix), 0, len(tokens))
        return [Completion(text, tokens, np.zeros(len(tokens), np.float32), stop, 0, cost) for _ in range(n)]


ADD_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def tool_models() -> ServedModels:
    """`caller` calls `add` for a sum, and answers with the result that it gets."""
    answers = {"<tool_response>\n5\n</tool_response>": "The sum is 5.", "add 2": f"I add.\n{ADD_CALL}", "": "Hello!"}
    return ServedModels([ServedModel("caller", ScriptedPolicy(answers))])
