"""A policy that says what it is told to, and keeps every bound and stop that a real one keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ponder.types import Completion, Cost, Ids, Message, Sampling, Trace, ids

EOS = 1
Says = Callable[[str, int], str]  # what was said so far (the prompt included), and the number of the continuation


@dataclass
class TextPolicy:
    """Tokens are runs of `width` characters. A script is said in order; a function says what follows a text.

    What it says ends with an end-of-sequence token where the text ends. `fails` raises for prefixes it is true of.
    """

    says: Sequence[str] | Says
    width: int = 1
    fails: Callable[[str], Exception | None] = lambda text: None
    asked: list[tuple[str, Sampling, int]] = field(default_factory=list)
    _said: int = 0
    _known: dict[str, int] = field(default_factory=dict)
    _texts: dict[int, str] = field(default_factory=dict)

    def encode(self, messages: Sequence[Message]) -> Ids:
        return self.tokens("".join(f"{m['content']}" for m in messages))

    def tokens(self, text: str) -> Ids:
        return ids(self._id(text[i : i + self.width]) for i in range(0, len(text), self.width))

    def text(self, tokens: Ids) -> str:
        return "".join(self._texts.get(int(t), "") for t in tokens)

    def _id(self, piece: str) -> int:
        if piece not in self._known:
            self._known[piece] = len(self._known) + 2
            self._texts[self._known[piece]] = piece
        return self._known[piece]

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        before = self.text(prefix)
        self.asked.append((before, sampling, n))
        if (error := self.fails(before)) is not None:
            raise error
        texts = [self._next(before, j) for j in range(n)]
        await asyncio.sleep(0)
        return [self._completion(text, prefix, sampling) for text in texts]

    def _next(self, before: str, j: int) -> str:
        if callable(self.says):
            return self.says(before, j)
        self._said += 1
        return self.says[self._said - 1]

    def _completion(self, text: str, prefix: Ids, sampling: Sampling) -> Completion:
        written = [*self.tokens(text).tolist(), EOS]
        kept: list[int] = []
        stop, message, longest = "length", "", max(map(len, sampling.stop), default=0) + self.width
        for token in written:
            if len(kept) == sampling.max_tokens:
                break
            if token == EOS and len(kept) < sampling.min_tokens:
                token = self._id(".")
            kept.append(token)
            if token == EOS:
                stop = "eos"
                break
            message = (message + self._texts[token])[-longest:]
            if len(kept) >= sampling.min_tokens and any(s in message for s in sampling.stop):
                stop = "stop"
                break
        cost = Cost(prompt_tokens=len(prefix), generated_tokens=len(kept))
        return Completion(self.text(ids(kept)), ids(kept), np.full(len(kept), -1.0, np.float32), stop, 0, cost)  # type: ignore[arg-type]


def tree_rows(trace: Trace) -> list[tuple[int | None, str, bool]]:
    """What a golden test writes down: each step's parent, its text, and whether a policy wrote it."""
    return [(s.parent, s.text, s.sampled) for s in trace.steps]
