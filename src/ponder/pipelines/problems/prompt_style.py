"""The prompt style of a job: the template's, if it says itself how to answer, else the strategy's, else the task's.

Each job applies `apply_style` to its task when it is constructed. So sampling, grading, imitation, the printed prompt
and replays all use the same prompt and read the same form of answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from ponder.errors import UsageError
from ponder.models.chat_templates import DEEPSEEK_R1_ZERO, R1
from ponder.protocols import Task
from ponder.tasks.answer_style import with_style
from ponder.types import Problem, user_messages
from ponder.verify.answers.style import THINKING_STYLES, find_style, question_with_instruction

# Templates that say how to answer, and the style that fits each.
_TEMPLATE_STYLES = {"r1": "r1", R1: "r1", "deepseek-r1-zero": "r1", DEEPSEEK_R1_ZERO: "r1"}


def apply_style(task: Task, strategy: Any = None, template: str | None = None) -> Task:
    """The task in the style of this strategy and template."""
    style = style_name(strategy, template)
    return with_style(task, style) if style else task


def styled_question(question: str, strategy: Any = None, template: str | None = None) -> Problem:
    """A single question in the style of this strategy and template."""
    style = style_name(strategy, template)
    text = question_with_instruction(question, find_style(style)) if style else question
    return Problem("question", user_messages(text), style=style, answer_instruction=text.removeprefix(question))


def style_name(strategy: Any = None, template: str | None = None) -> str:
    """The name of the style; empty: the task's own."""
    own, of_template = strategy_style(strategy), _TEMPLATE_STYLES.get(template or "", "")
    if of_template and own and own not in THINKING_STYLES:
        raise UsageError(
            f"the template {of_template} tells the model to think before it answers, and the strategy asks for style "
            f"{own}: leave one of them out"
        )
    return of_template or own


def strategy_style(strategy: Any) -> str:
    """The style that a strategy asks for; empty: it leaves that to the task."""
    styles = set(_strategy_styles(strategy))
    if len(styles) > 1:
        listed = " and ".join(sorted(style or "the task's own" for style in styles))
        raise UsageError(
            f"the strategies inside {type(strategy).__name__} ask for answers in different styles ({listed}), and one"
            " trace has one prompt: give them the same"
        )
    return styles.pop() if styles else ""


def _strategy_styles(strategy: Any) -> Iterator[str]:
    prompt = getattr(strategy, "prompt", None)
    if prompt is not None:
        yield str(getattr(prompt, "style", ""))
    for field in fields(strategy) if is_dataclass(strategy) and not isinstance(strategy, type) else ():
        inner = getattr(strategy, field.name)
        if is_dataclass(inner) and callable(inner) and not isinstance(inner, type):
            yield from _strategy_styles(inner)
