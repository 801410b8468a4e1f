"""The first prompt that a strategy sends, found by running the strategy until it sends one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ponder.errors import BudgetExhausted, PonderError
from ponder.protocols import Policy, PolicyWrapper, Scorer, Strategy
from ponder.types import Completion, Ids, Message, Problem, Sampling, ids, prompt_trace


class _PrefixRecorder(PolicyWrapper):
    """Records the first prefix and generates nothing."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.prefixes = policy, list[Ids]()

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        self.prefixes.append(prefix)
        raise BudgetExhausted("only the first prompt was asked for")


async def first_prompt(strategy: Strategy, problem: Problem, policy: Policy, guide: Scorer | None = None) -> Ids:
    """The tokens of the first prompt; the problem's own prompt if the strategy sends none without its guide."""
    own = policy.encode(problem.messages)
    recorder = _PrefixRecorder(policy)
    with suppress(PonderError):
        await strategy(prompt_trace(replace(problem, answer=None, tags={}), own), recorder, guide)
    return recorder.prefixes[0] if recorder.prefixes else own


async def first_prompts(strategy: Strategy, problems: Sequence[Problem], policy: Policy) -> list[Ids]:
    return [await first_prompt(strategy, problem, policy) for problem in problems]


class _MessageRecorder:
    """A policy without a model that records conversations: each is encoded as one token, its index."""

    def __init__(self) -> None:
        self.prompts: list[list[Message]] = []

    def encode(self, messages: Sequence[Message]) -> Ids:
        self.prompts.append([dict(m) for m in messages])
        return ids([len(self.prompts) - 1])

    def tokens(self, text: str) -> Ids:
        return ids(text.encode())

    def text(self, tokens: Ids) -> str:
        return bytes(int(t) for t in tokens).decode(errors="replace")

    async def generate(self, prefix: Ids, sampling: Sampling, n: int = 1) -> list[Completion]:
        raise BudgetExhausted("this policy generates nothing")


async def first_messages(strategy: Strategy, problem: Problem) -> list[Message]:
    """The first conversation that the strategy sends, for any model."""
    recorder = _MessageRecorder()
    prompt = await first_prompt(strategy, problem, recorder)
    return recorder.prompts[int(prompt[0])]
