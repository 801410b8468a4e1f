"""Structure: follow-up prompts that quote earlier answers and ask for a better one (refine) or for one made of several
(aggregate, Besta et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.errors import UsageError
from ponder.reason.operators.follow_up import (
    FollowUpQuestion,
    FollowUps,
    messages_from_template,
    numbered_texts,
    text_after_thinking,
)
from ponder.types import Sampling, Trace

REFINE_TEMPLATE = """{question}

An earlier attempt at this question:
{answer}

{feedback}Check it, correct what is wrong in it, and give a complete answer again. If it is right, repeat it."""
FEEDBACK_TEMPLATE = "What was found about this attempt:\n{found}\n\n"


async def refine(
    follow_ups: FollowUps, step: int, sampling: Sampling, feedback: str = "", template: str = REFINE_TEMPLATE,
    *, meta: bool = False, resample: bool = False,
) -> int:  # fmt: skip
    """Ask for a better answer than this step's. Returns the existing refinement, or with `resample` a new one."""
    trace = follow_ups.trace
    feedback_text = FEEDBACK_TEMPLATE.replace("{found}", feedback.strip()) if feedback.strip() else ""
    messages = messages_from_template(
        trace.problem, template, answers=not meta, answer=text_after_thinking(trace, step), feedback=feedback_text
    )
    question = FollowUpQuestion(messages, (step,))
    return (await follow_ups.ask(question, sampling, 1 + follow_ups.count_replies(question) * resample, meta=meta))[-1]


AGGREGATE_TEMPLATE = """{question}

Several attempts at this question:

{thoughts}

Use what is right in them, leave out what is wrong, and give one complete answer."""


def aggregate_question(trace: Trace, steps: Sequence[int], template: str = AGGREGATE_TEMPLATE) -> FollowUpQuestion:
    """The follow-up question that asks for one answer made of these steps."""
    if not steps:
        raise UsageError("there is nothing to aggregate: give at least one step")
    thoughts = numbered_texts([text_after_thinking(trace, i) for i in steps])
    return FollowUpQuestion(
        messages_from_template(trace.problem, template, answers=True, thoughts=thoughts), tuple(steps)
    )


async def aggregate(
    follow_ups: FollowUps, steps: Sequence[int], sampling: Sampling, n: int = 1, template: str = AGGREGATE_TEMPLATE
) -> list[int]:
    """n answers, each made of all these steps, to one prompt that cites them."""
    return await follow_ups.ask(aggregate_question(follow_ups.trace, steps, template), sampling, n)
