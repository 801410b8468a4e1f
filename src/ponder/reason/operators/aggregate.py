"""Aggregate: a further prompt that quotes several thoughts and asks for one made of them (Besta et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.errors import UsageError
from ponder.reason.operators.follow_up import FollowUpQuestion, FollowUps
from ponder.reason.operators.wording import messages_from_template, text_after_thinking
from ponder.types import Sampling, Trace

AGGREGATE_TEMPLATE = """{question}

Several attempts at this question:

{thoughts}

Use what is right in them, leave out what is wrong, and give one complete answer."""


def aggregate_question(trace: Trace, steps: Sequence[int], template: str = AGGREGATE_TEMPLATE) -> FollowUpQuestion:
    """The question that asks for one thought out of these."""
    if not steps:
        raise UsageError("there is nothing to aggregate: give at least one step")
    thoughts = numbered_texts([text_after_thinking(trace, i) for i in steps])
    return FollowUpQuestion(
        messages_from_template(trace.problem, template, answers=True, thoughts=thoughts), tuple(steps)
    )


async def aggregate(
    follow_ups: FollowUps, steps: Sequence[int], sampling: Sampling, n: int = 1, template: str = AGGREGATE_TEMPLATE
) -> list[int]:
    """n answers, each made of all of these, to a prompt that cites them."""
    return await follow_ups.ask(aggregate_question(follow_ups.trace, steps, template), sampling, n)


def numbered_texts(texts: Sequence[str], name: str = "Attempt") -> str:
    return "\n\n".join(f"{name} {i}:\n{text}" for i, text in enumerate(texts, 1))
