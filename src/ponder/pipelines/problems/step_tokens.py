"""Mark the steps of given answers with a token of their own, as in x1 (Besta et al. 2025, "Reasoning Language Models: A
Blueprint"): a model that learns it says itself where a step ends, and a search cuts there exactly."""

from __future__ import annotations

from collections.abc import Sequence

from ponder.errors import TaskError
from ponder.pipelines.problems.conversations import TokenizedAnswer
from ponder.types import Problem


def mark_steps(text: str, token: str, separator: str) -> str:
    """The text with the token after each separator that more follows, so that without the token it is the same text."""
    *steps, last = text.split(separator)
    marked = "".join(step + separator + (token if step.strip() else "") for step in steps)
    end = separator + token
    return (marked + last) if last.strip() or not marked.endswith(end) else marked.removesuffix(token) + last


def mark_answer_steps(answers: str | Sequence[str], token: str, separator: str) -> str | Sequence[str]:
    """One answer, or a chosen and a rejected one, with marked steps."""
    if isinstance(answers, str):
        return mark_steps(answers, token, separator)
    return tuple(mark_steps(text, token, separator) for text in answers)


def refuse_token_ids(problems: Sequence[Problem]) -> None:
    """Raise if an answer has token ids of its own, into which no step token goes."""
    for problem in problems:
        if isinstance(problem.answer, TokenizedAnswer):
            raise TaskError(
                f"{problem.id} has token ids, into which no step token goes: leave out 'token_ids', or step_token"
            )
