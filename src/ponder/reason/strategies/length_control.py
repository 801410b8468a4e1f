"""Length control without forcing: a prompt that states tokens, steps or a length class, or rejection sampling.

These are the baselines of budget forcing (s1: Muennighoff et al. 2025, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ponder.errors import UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.budget import until_exhausted
from ponder.reason.operators.completions import strip_end_marker, strip_partial_marker
from ponder.reason.operators.follow_up import fill_template, require_slots
from ponder.reason.operators.generate import (
    add_completion,
    add_unless_empty,
    generate,
    insert_text,
    sample_continuations,
)
from ponder.reason.operators.select import set_answer
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.strategies.chain import grow_chain
from ponder.types import Cost, Sampling, Trace

GREEDY_SAMPLING = Sampling(temperature=0.0, max_tokens=2048)


@dataclass(frozen=True, slots=True)
class TokenControl:
    """Token-conditional control: the prompt states how many tokens of thinking to use; nothing enforces it."""

    max_thinking_tokens: int = 512
    instruction: str = "Think for at most {tokens} tokens before you give the final answer."
    sampling: Sampling = GREEDY_SAMPLING
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        require_slots("length", self.instruction, "tokens")
        if self.max_thinking_tokens < 1:
            raise UsageError(f"max_thinking_tokens is {self.max_thinking_tokens}; give at least 1")

    def unused(self) -> dict[str, str]:
        return {"guide": "one chain is sampled, and nothing scores it"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        await _answer_once(
            trace,
            policy,
            _with_instruction(self.prompt, fill_template(self.instruction, tokens=str(self.max_thinking_tokens))),
            self.sampling,
        )


@dataclass(frozen=True, slots=True)
class ClassControl:
    """Class-conditional control: the prompt asks for short or long thinking."""

    length: Literal["short", "long"] = "short"
    short: str = "Think only briefly before you answer."
    long: str = "Think for a long time before you answer."
    sampling: Sampling = GREEDY_SAMPLING
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if self.length not in ("short", "long"):
            raise UnknownName("class of length", self.length, ("short", "long"))

    def unused(self) -> dict[str, str]:
        other = "long" if self.length == "short" else "short"
        return {other: f"length is {self.length}", "guide": "one chain is sampled, and nothing scores it"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        instruction = self.short if self.length == "short" else self.long
        await _answer_once(trace, policy, _with_instruction(self.prompt, instruction), self.sampling)


@dataclass(frozen=True, slots=True)
class StepControl:
    """Step-conditional control: at most `max_steps` steps of thinking, and before each the number of steps left.

    A step ends at `step_separator` or after `max_step_tokens`. The thinking ends where the policy writes `think_end`,
    or after the last step. The countdown is inserted, not sampled, so training does not learn it.
    """

    max_steps: int = 8
    max_step_tokens: int = 100
    instruction: str = "Think in at most {steps} steps before you give the final answer."
    countdown: str = "\n[{left} steps left]\n"
    step_separator: str = "\n\n"
    think_start: str = ""
    think_end: str = "</think>"
    answer_prefix: str = "\n\nFinal Answer:"
    sampling: Sampling = Sampling(temperature=0.0)  # its max_tokens limit the answer
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        require_slots("length", self.instruction, "steps")
        require_slots("countdown", self.countdown, "left")
        if self.max_steps < 1 or self.max_step_tokens < 1:
            raise UsageError(
                f"max_steps is {self.max_steps} and max_step_tokens {self.max_step_tokens}; both must be at least 1"
            )
        if not self.think_end or not self.step_separator:
            raise UsageError(
                "step control needs the text that ends the thinking (think_end) and a step (step_separator)"
            )

    def unused(self) -> dict[str, str]:
        return {"guide": "one chain is sampled, and nothing scores it"}

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        root = _with_instruction(self.prompt, fill_template(self.instruction, steps=str(self.max_steps))).root_step(
            trace, policy
        )
        if not trace.children(root):
            insert_text(trace, root, self.think_start + self._mark(0), policy)
        await grow_chain(
            trace,
            root,
            lambda end: self._extend_chain(trace, root, end, policy),
            lambda end: trace.steps[end].last,
        )

    async def _extend_chain(self, trace: Trace, root: int, at: int, policy: Policy) -> None:
        if self.think_end in trace.steps[at].text:  # the thinking has ended
            await generate(trace, at, policy, self.sampling, last=True)
            return
        stop = (*self.sampling.stop, self.step_separator, self.think_end)
        (c,) = await sample_continuations(
            trace, at, policy, replace(self.sampling, max_tokens=self.max_step_tokens, min_tokens=0, stop=stop)
        )
        marks = sum(not trace.steps[i].sampled for i in trace.path(at)[len(trace.path(root)) :])
        if self.think_end in c.text:
            add_completion(trace, at, c)
            return
        stripped = (
            strip_end_marker(c, self.think_end, policy)[0]
            if c.stop == "eos"
            else strip_partial_marker(c, self.think_end, policy)
        )
        at = add_unless_empty(trace, at, stripped)
        over = c.stop == "eos" or not len(stripped.token_ids) or marks >= self.max_steps
        insert_text(trace, at, self.think_end + self.answer_prefix if over else self._mark(marks), policy)

    def _mark(self, done: int) -> str:
        return fill_template(self.countdown, left=str(self.max_steps - done))


@dataclass(frozen=True, slots=True)
class LengthRejection:
    """Rejection sampling by length: sample until an answer has `min_answer_tokens` to `max_answer_tokens` tokens.

    Other answers are pruned and their tokens wasted. Sampling stops at `max_answer_tokens`, which rejects the same
    answers for fewer tokens.
    """

    max_answer_tokens: int = 1024
    min_answer_tokens: int = 0
    max_attempts: int = 16
    attempts_per_round: int = 1
    sampling: Sampling = Sampling()
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        if not 0 <= self.min_answer_tokens <= self.max_answer_tokens or self.max_answer_tokens < 1:
            raise UsageError(
                f"min_answer_tokens is {self.min_answer_tokens} and max_answer_tokens {self.max_answer_tokens};"
                " give 0 <= min <= max, and a max of at least 1"
            )
        if self.max_attempts < 1 or self.attempts_per_round < 1:
            raise UsageError(
                f"max_attempts is {self.max_attempts} and attempts_per_round {self.attempts_per_round};"
                " both must be at least 1"
            )

    def unused(self) -> dict[str, str]:
        return {
            "max_tokens": "the setting max_answer_tokens limits an answer",
            "guide": "an answer is accepted by its length alone",
        }

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        root = self.prompt.root_step(trace, policy)
        how = replace(
            self.sampling,
            max_tokens=self.max_answer_tokens,
            min_tokens=min(self.sampling.min_tokens, self.max_answer_tokens),
        )
        while trace.chosen is None and (left := self.max_attempts - len(trace.children(root))) > 0:
            fresh: list[int] = []
            with until_exhausted(trace):
                fresh = await generate(trace, root, policy, how, min(left, self.attempts_per_round), last=True)
            if not fresh:
                break
            for i in fresh:
                self._prune_if_rejected(trace, i)
            trace.chosen = next((i for i in fresh if not trace.steps[i].pruned), None)
        if trace.chosen is None and not trace.budget_exhausted:
            bounds = f"{self.min_answer_tokens} to {self.max_answer_tokens}"
            trace.failed = f"none of {len(trace.children(root))} answers has {bounds} tokens"

    def _prune_if_rejected(self, trace: Trace, i: int) -> None:
        step = trace.steps[i]
        size = len(step.token_ids)
        if step.stop == "length" or size < self.min_answer_tokens:
            cut = (
                f"longer than {self.max_answer_tokens} tokens"
                if size >= self.max_answer_tokens
                else f"cut off after {size} tokens"
            )
            step.pruned = step.pruned or (cut if step.stop == "length" else f"only {size} tokens")
            trace.add_cost(Cost(wasted_tokens=size))


def _with_instruction(prompt: Prompt, text: str) -> Prompt:
    return replace(prompt, instruction=f"{prompt.instruction}\n{text}".strip())


async def _answer_once(trace: Trace, policy: Policy, prompt: Prompt, sampling: Sampling) -> None:
    root = prompt.root_step(trace, policy)
    if not trace.children(root):
        set_answer(trace, (await generate(trace, root, policy, sampling, last=True))[0])
