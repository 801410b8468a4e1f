"""A policy whose tree of thoughts is written out in the test, a guide by table, and a trace as readable lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ponder.errors import BudgetExhausted, ModelError
from ponder.reason.operators.cut import Cut
from ponder.types import (
    Completion,
    Cost,
    Ids,
    Message,
    Problem,
    Sampling,
    Score,
    Trace,
    ids,
    prompt_trace,
    user_messages,
)

LINES = Cut(stop=("\n",))
ASKED = "Q:"


@dataclass
class ScriptedPolicy:
    """A `Policy` of characters. `after` has the continuations of each text, in order; one that ends in a line break is
    a step, any other an answer. A text that has run out of them begins again; one that is not named says `else_`."""

    after: Mapping[str, Sequence[str]]
    else_: str = "?"
    fails: frozenset[str] = frozenset()  # texts after which it breaks
    spends: int | None = None  # calls after which it has no budget
    logprob: Callable[[str], float] = lambda text: -1.0
    asked: list[tuple[str, int]] = field(default_factory=list)
    how: list[Sampling] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)

    def encode(self, messages: Sequence[Message]) -> Ids:
        return ids(ord(c) for m in messages for c in str(m["content"]))

    def tokens(self, text: str) -> Ids:
        return ids(map(ord, text))

    def text(self, tokens: Ids) -> str:
        return "".join(map(chr, tokens))

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        text = self.text(prefix)
        text = text[text.index(ASKED) + len(ASKED) :]
        await asyncio.sleep(0)
        if text in self.fails:
            raise ModelError("the context is full")
        if self.spends is not None and len(self.asked) >= self.spends:
            raise BudgetExhausted("the budget is used up")
        self.asked.append((text, n))
        self.how.append(sampling)
        return [self._next(text, sampling) for _ in range(n)]

    def _next(self, text: str, sampling: Sampling) -> Completion:
        options = self.after.get(text, [self.else_])
        message = options[self.given.get(text, 0) % len(options)]
        self.given[text] = self.given.get(text, 0) + 1
        kind = "stop" if message.endswith("\n") else "eos"
        if len(message) > sampling.max_tokens:
            message, kind = message[: sampling.max_tokens], "length"
        tokens = self.tokens(message)
        logprobs = np.full(len(tokens), self.logprob(message), np.float32)
        return Completion(message, tokens, logprobs, kind, cost=Cost(generated_tokens=len(tokens)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class TableScorer:
    """A guide by table: the score of a step by its own text; None is undecided, an error is raised; others are 0."""

    scores: Mapping[str, float | Exception | None]
    calls: list[list[str]] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return "rated"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        await asyncio.sleep(0)
        texts = [trace.steps[i].text for i in steps]
        self.calls.append(texts)
        result = [self.scores.get(t, 0.0) for t in texts]
        for f in result:
            if isinstance(f, Exception):
                raise f
        return [Score(f, "no idea" if f is None else "") for f in result]  # type: ignore[arg-type]


def question_trace(question: str = ASKED) -> Trace:
    policy = ScriptedPolicy({})
    trace = prompt_trace(Problem("p", user_messages(question)), policy.encode(user_messages(question)))
    trace.extract_answer = lambda text: text.split("=")[-1].strip() if "=" in text else None
    return trace


def tree_lines(trace: Trace, root: int = 0) -> list[str]:
    """One line a step, below its parent: text, continuations given, value, why it was pruned."""
    lines = []

    def show(i: int, depth: int) -> None:
        s = trace.steps[i]
        text = s.text.replace("\n", "/")
        why = f" ({s.pruned})" if s.pruned else ""
        mark = " *" if trace.chosen == i else ""
        lines.append(f"{'  ' * depth}{text} x{s.visits} {s.value:g}{why}{mark}")
        for child in trace.children(i):
            show(child, depth + 1)

    show(root, 0)
    return lines
