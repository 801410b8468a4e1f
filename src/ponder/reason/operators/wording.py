"""Questions about thoughts: a template whose slots are filled once, put in the place of the problem's question."""

from __future__ import annotations

import re

from ponder.errors import UsageError
from ponder.types import Message, Problem, Trace
from ponder.verify import strip_thinking

_SLOT = re.compile(r"\{(\w+)\}")


def fill_template(template: str, **slots: str) -> str:
    """Each {slot} by its text. Braces that are no slot stay (\\frac{a}{b}), and what is filled in is not looked at."""
    return _SLOT.sub(lambda m: slots.get(m[1], m[0]), template)


def require_slots(what: str, template: str, *slots: str) -> None:
    """Refuse a template that would not show what the question is about."""
    if lacking := [s for s in slots if f"{{{s}}}" not in template]:
        raise UsageError(f"the {what} prompt does not say where {{{lacking[0]}}} goes; write that into it")


def messages_from_template(problem: Problem, template: str, *, answers: bool = False, **slots: str) -> list[Message]:
    """The problem's conversation with its last message said by this template, whose {question} is that message.

    How to answer the problem is said only where the reply `answers` it, and at the end.
    """
    given = [dict(m) for m in problem.messages] or [{"role": "user", "content": ""}]
    question = str(given[-1]["content"]).removesuffix(problem.answer_instruction)
    how = f"\n{problem.answer_instruction.strip()}" if answers and problem.answer_instruction else ""
    given[-1]["content"] = fill_template(template, question=question, **slots) + how
    return list(given)


def text_after_thinking(trace: Trace, step: int) -> str:
    """What a step says to others: without its thinking, unless that is all there is."""
    text = trace.text(step)
    return (strip_thinking(text) or text).strip()
