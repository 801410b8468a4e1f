"""Budget forcing (s1: Muennighoff et al. 2025): end the thinking at a maximum, and not before a minimum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.completions import strip_end_marker, strip_partial_marker
from ponder.reason.operators.generate import (
    add_completion,
    add_unless_empty,
    generate,
    insert_text,
    sample_continuations,
)
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.strategies.chain import grow_chain
from ponder.types import Sampling, Trace

BANNED = -1e9  # added to a token's logit


@dataclass(frozen=True, slots=True)
class BudgetForcing:
    """One chain whose thinking is bounded from both sides.

    - Maximum: at `max_thinking_tokens` the strategy ends the thinking with `think_end`, and asks for the answer with
      `answer_prefix`.
    - Minimum: up to `waits` times, or before `min_thinking_tokens`, it removes the end of thinking and inserts
      `wait_word`. Where that is empty, the next token may not be the first of `think_end`, nor the end of the text.
    - `round_budget`: after each wait word the model gets a full budget again ("full"), or what is left of one ("left").
      The authors published both.

    All tokens between the question and `think_end` count, inserted ones too: at most `max_thinking_tokens` ("left"), or
    (1 + waits) times as many ("full"). Inserted text is not sampled, so training does not learn it.
    """

    max_thinking_tokens: int = 1024
    min_thinking_tokens: int = 0
    waits: int = 1
    wait_word: str = "Wait"
    round_budget: Literal["left", "full"] = "left"
    think_start: str = ""  # inserted first, if the chat template does not: "<think>\n"
    think_end: str = "</think>"
    answer_prefix: str = "\n\nFinal Answer:"
    sampling: Sampling = Sampling(temperature=0.0)  # its max_tokens limit the answer
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if self.round_budget not in ("left", "full"):
            raise UnknownName("round_budget", self.round_budget, ("left", "full"))
        if self.max_thinking_tokens < 1 or self.waits < 0:
            raise UsageError(
                f"max_thinking_tokens is {self.max_thinking_tokens} and waits {self.waits}; give at least 1 and 0"
            )
        if not 0 <= self.min_thinking_tokens <= self.total_thinking_tokens:
            raise UsageError(
                f"min_thinking_tokens is {self.min_thinking_tokens};"
                f" it must lie between 0 and the {self.total_thinking_tokens} tokens of thinking"
            )
        if not self.think_end:
            raise UsageError("budget forcing needs the text that ends the thinking (think_end)")
        if (self.waits or self.min_thinking_tokens) and any(
            self.wait_word.endswith(self.think_end[:size]) for size in range(1, len(self.think_end) + 1)
        ):
            raise UsageError(
                f"wait_word {self.wait_word!r} ends as think_end {self.think_end!r} begins, so that the end of what is"
                " thought after it would not be found: give another wait_word"
            )

    @property
    def total_thinking_tokens(self) -> int:
        """The most tokens of thinking, all rounds together."""
        return self.max_thinking_tokens * (1 + self.waits if self.round_budget == "full" else 1)

    def unused(self) -> dict[str, str]:
        out = {"guide": "one chain is sampled, and nothing scores it"}
        if not (self.waits or self.min_thinking_tokens):
            why = "only waits or min_thinking_tokens continue the thinking: give one"
            out |= dict.fromkeys(("wait_word", "round_budget"), why)
        return out

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        root = self.prompt.root_step(trace, policy)
        if self.think_start and not trace.children(root):
            insert_text(trace, root, self.think_start, policy)
        await grow_chain(
            trace,
            root,
            lambda end: self._extend_chain(trace, root, end, policy),
            lambda end: trace.steps[end].last,
        )

    async def _extend_chain(self, trace: Trace, root: int, at: int, policy: Policy) -> None:
        """Add the next part of the chain, depending on the parts so far."""
        if at != root and self.think_end in trace.steps[at].text:  # the thinking has ended
            await generate(trace, at, policy, self.sampling, last=True)
            return
        used, waited = self._tokens_and_waits(trace, root, at)
        if waited and not self.wait_word and not trace.steps[at].sampled:
            await self._suppress_end(trace, at, policy)
            return
        room = min(self.max_thinking_tokens, self.total_thinking_tokens - used)
        stop = (*self.sampling.stop, self.think_end)
        # After a wait word at least one token comes before the next end, or there would be no thinking.
        how = replace(self.sampling, max_tokens=room, min_tokens=int(waited > 0), stop=stop)
        (c,) = await sample_continuations(trace, at, policy, how)
        if c.stop == "length" and 0 < len(c.token_ids) < room:  # an outer budget: the thinking is not over
            add_completion(trace, at, strip_partial_marker(c, self.think_end, policy))
            return
        stripped, rest = (c, "") if c.stop == "length" else strip_end_marker(c, self.think_end, policy)
        used += len(stripped.token_ids)
        word = rest + self.wait_word
        again = c.stop != "length" and (waited < self.waits or used < self.min_thinking_tokens)
        # Something must follow the last wait word, or it would never end.
        thought = len(stripped.token_ids) > 0 or trace.steps[at].sampled
        one = int(not self.wait_word)  # the token that is not an end
        if again and thought and used + len(policy.tokens(word)) + one < self.total_thinking_tokens:
            insert_text(trace, add_unless_empty(trace, at, stripped), word, policy)
        elif c.stop == "stop" and self.think_end in c.text:
            add_completion(trace, at, c)  # the model ended its thinking
        else:
            insert_text(
                trace, add_unless_empty(trace, at, stripped), rest + self.think_end + self.answer_prefix, policy
            )

    async def _suppress_end(self, trace: Trace, at: int, policy: Policy) -> None:
        """Add one token that does not begin the end of thinking."""
        banned = (*self.sampling.logit_bias, (int(policy.tokens(self.think_end)[0]), BANNED))
        how = replace(self.sampling, max_tokens=1, min_tokens=1, logit_bias=banned)
        (c,) = await sample_continuations(trace, at, policy, how)
        add_completion(trace, at, replace(c, stop="stop"))

    def _tokens_and_waits(self, trace: Trace, root: int, at: int) -> tuple[int, int]:
        """Tokens of the thinking so far, and the number of wait words."""
        parts = trace.path(at)[len(trace.path(root)) :]
        if self.think_start:
            parts = parts[1:]
        waited = sum(not trace.steps[i].sampled for i in parts)
        return sum(len(trace.steps[i].token_ids) for i in parts), waited
