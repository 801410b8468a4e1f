"""When two questions are the same: one rule for each purpose.

`split_key` decides between training and test, so it must never change. `same_question_key` finds questions that stand
on both sides. `normalize_question` finds repeated questions among new ones. `bare_question` is a question without the
instruction on how to answer it, and `bare_question_text` is the same for comparing problems of several tasks.
"""

from __future__ import annotations

import re

from ponder.protocols import Task
from ponder.types import Problem

_CLOSING_MARKS = re.compile(r"[\s.?!]+\Z")


def split_key(question: str) -> str:
    """The question without case, spacing and punctuation. It decides the split, so it must stay as it is."""
    return " ".join(re.findall(r"[a-z0-9]+", question.lower()))


def same_question_key(question: str) -> str:
    """Equal for two questions that differ in case, spacing and punctuation only, in any script."""
    return " ".join(re.findall(r"[^\W_]+", question.lower())) or question


def normalize_question(question: str) -> str:
    """The question without case, spacing and closing marks; 3 + 4 and 3 - 4 stay two questions."""
    return _CLOSING_MARKS.sub("", " ".join(question.casefold().split()))


def bare_question(problem: Problem) -> str:
    """The question without the instruction on how to answer it."""
    return str(problem.tags.get("question") or problem.bare_question)


def bare_question_text(task: Task, problem: Problem) -> str:
    """The question without the task's prompt around it, without case and spacing."""
    question, prompt = problem.question, getattr(task, "prompt", "")
    if isinstance(prompt, str) and prompt.count("{question}") == 1:
        before, after = prompt.format(question="\0").split("\0")
        question = question.removeprefix(before).removesuffix(after)
    return " ".join(question.lower().split())
