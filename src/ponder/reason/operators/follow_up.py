"""Structure: follow-up prompts, which quote steps and ask about them. Each question is asked once per trace.

`FollowUps` finds questions that were asked before in the trace. So a strategy that is called again on the same trace
reaches the same point without asking twice, and continues from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UsageError
from ponder.pictures.message_parts import content_text, with_text
from ponder.protocols import Policy
from ponder.reason.concurrency import gather_within_budget
from ponder.reason.operators.generate import add_completion, call_policy, refuse_episodes, sample_continuations
from ponder.types import Completion, Ids, Message, Problem, Sampling, Step, Trace
from ponder.verify import strip_thinking

_SLOT = re.compile(r"\{(\w+)\}")


def fill_template(template: str, **slots: str) -> str:
    """Replace each {slot} by its text. Other braces stay (\\frac{a}{b}), and inserted text is not filled again."""
    return _SLOT.sub(lambda m: slots.get(m[1], m[0]), template)


def require_slots(name: str, template: str, *slots: str) -> None:
    """Refuse a template without these slots."""
    if missing := [s for s in slots if f"{{{s}}}" not in template]:
        raise UsageError(f"the {name} prompt has no slot {{{missing[0]}}}; write it into the template")


def messages_from_template(problem: Problem, template: str, *, answers: bool = False, **slots: str) -> list[Message]:
    """The problem's conversation with its last message replaced by this template, whose {question} is that message.

    The answer instruction is added, at the end, only if the reply `answers` the problem.
    """
    messages = [dict(m) for m in problem.messages] or [{"role": "user", "content": ""}]
    content = messages[-1]["content"]
    question = content_text(content).removesuffix(problem.answer_instruction)
    how = f"\n{problem.answer_instruction.strip()}" if answers and problem.answer_instruction else ""
    messages[-1]["content"] = with_text(content, fill_template(template, question=question, **slots) + how)
    return list(messages)


def text_after_thinking(trace: Trace, step: int) -> str:
    """A step's text without its thinking, unless there is nothing else."""
    text = trace.text(step)
    return (strip_thinking(text) or text).strip()


_Key = tuple[bytes, tuple[int, ...]]


class FollowUpQuestion(NamedTuple):
    messages: Sequence[Message]
    cites: tuple[int, ...]  # the steps that it quotes
    shared_prompt: bool = False  # equal text is one question, whichever step it is about


@dataclass(slots=True)
class FollowUps:
    """The follow-up prompts of a trace, by their tokens."""

    trace: Trace
    policy: Policy
    _prompt_steps: dict[_Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_episodes(self.trace)
        for i, step in enumerate(self.trace.steps[1:], 1):
            if step.parent is None:
                words = step.token_ids.tobytes()
                self._prompt_steps.setdefault((words, step.cites), i)
                self._prompt_steps.setdefault((words, ()), i)

    async def ask_all(
        self, questions: Sequence[FollowUpQuestion], sampling: Sampling, n: int = 1, *, meta: bool = False
    ) -> list[list[int] | PonderError]:
        """n replies to each question, or the error; prompts and replies are added to the trace in order.

        `meta`: the replies are meta steps about a thought; else each is an answer to the problem. If all new questions
        fail, that is an error.
        """
        requested: dict[_Key, tuple[FollowUpQuestion, Ids]] = {}
        keys = [self._key(q, requested) for q in questions]
        missing = {k: n - self._had(k) for k in requested if self._had(k) < n}
        work = [self._draw(k, requested[k][1], sampling, count) for k, count in missing.items()]
        replies, spent = await gather_within_budget(*work) if work else ([], None)
        failed: dict[_Key, PonderError] = {}
        for key, completions in zip(missing, replies, strict=True):
            if isinstance(completions, PonderError):
                failed[key] = completions
            elif completions is not None:
                self._keep(key, *requested[key], completions, meta)
        if failed and len(failed) == len(missing):
            raise next(iter(failed.values()))
        if spent is not None:
            raise spent
        return [failed[k] if k in failed else list(self.trace.children(self._prompt_steps[k]))[:n] for k in keys]

    async def ask(self, question: FollowUpQuestion, sampling: Sampling, n: int = 1, *, meta: bool = False) -> list[int]:
        """n replies to one question."""
        (replies,) = await self.ask_all([question], sampling, n, meta=meta)
        assert not isinstance(replies, PonderError)  # if its only question fails, ask_all raises
        return replies

    def count_replies(self, question: FollowUpQuestion) -> int:
        """How many replies a question has."""
        return self._had(self._key(question, {}))

    def _key(self, question: FollowUpQuestion, requested: dict[_Key, tuple[FollowUpQuestion, Ids]]) -> _Key:
        prefix = self.policy.encode(question.messages)
        key = prefix.tobytes(), () if question.shared_prompt else question.cites
        if key in requested and question.shared_prompt:  # one prompt cites several steps
            before, _ = requested[key]
            question = before._replace(cites=(*before.cites, *question.cites))
        requested[key] = question, prefix
        return key

    def _had(self, key: _Key) -> int:
        return len(self.trace.children(self._prompt_steps[key])) if key in self._prompt_steps else 0

    async def _draw(self, key: _Key, prefix: Ids, sampling: Sampling, n: int) -> list[Completion] | PonderError:
        try:
            if key in self._prompt_steps:
                return await sample_continuations(self.trace, self._prompt_steps[key], self.policy, sampling, n)
            return await call_policy(self.policy, prefix, sampling, n)
        except (Interrupted, BudgetExhausted):
            raise
        except PonderError as error:
            return error

    def _keep(
        self, key: _Key, question: FollowUpQuestion, prefix: Ids, completions: Sequence[Completion], meta: bool
    ) -> None:
        if key not in self._prompt_steps:
            text = content_text(question.messages[-1]["content"])
            self._prompt_steps[key] = self.trace.add(Step(None, text, prefix, cites=question.cites))
        for c in completions:
            add_completion(self.trace, self._prompt_steps[key], c, last=not meta, meta=meta)


def numbered_texts(texts: Sequence[str], name: str = "Attempt") -> str:
    return "\n\n".join(f"{name} {i}:\n{text}" for i, text in enumerate(texts, 1))
