"""Refine: a further prompt that quotes an answer and what is wrong with it, and asks for a better one."""

from __future__ import annotations

from ponder.reason.operators.follow_up import FollowUpQuestion, FollowUps
from ponder.reason.operators.wording import messages_from_template, text_after_thinking
from ponder.types import Sampling

REFINE_TEMPLATE = """{question}

An earlier attempt at this question:
{answer}

{feedback}Check it, correct what is wrong in it, and give a complete answer again. If it is right, repeat it."""
FEEDBACK_TEMPLATE = "What was found about this attempt:\n{found}\n\n"


async def refine(
    follow_ups: FollowUps, step: int, sampling: Sampling, feedback: str = "", template: str = REFINE_TEMPLATE,
    *, aside: bool = False, resample: bool = False,
) -> int:  # fmt: skip
    """A better answer than this step's, to a prompt that cites it: the one that there is, or `another`."""
    trace = follow_ups.trace
    told = FEEDBACK_TEMPLATE.replace("{found}", feedback.strip()) if feedback.strip() else ""
    messages = messages_from_template(
        trace.problem, template, answers=not aside, answer=text_after_thinking(trace, step), feedback=told
    )
    asked = FollowUpQuestion(messages, (step,))
    return (await follow_ups.ask(asked, sampling, 1 + follow_ups.count_replies(asked) * resample, aside=aside))[-1]
