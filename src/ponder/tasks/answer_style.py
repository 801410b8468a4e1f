"""Tasks whose questions can be asked in several answer styles (`verify.answers.style`).

`StyledTask` is the base of tasks that know their answer format. Any other task takes a style through `StyleWrapper`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Self

from ponder.errors import UsageError
from ponder.pictures.message_parts import content_text, with_text
from ponder.protocols import Scorer, Task
from ponder.tasks.lazy_problems import LazyProblems
from ponder.tasks.wrapped_task import WrappedTask
from ponder.types import Message, Problem, user_messages
from ponder.verify import AnswerForm
from ponder.verify.answers import style as styles
from ponder.verify.answers.style import AnswerSpec, AnswerStyle, find_style


@dataclass(frozen=True, kw_only=True)
class StyledTask:
    """A strategy may ask for another style than the task's own. A prompt that the user wrote says itself how to
    answer, unless a style is named beside it; `forms`, where a task has them, narrow what is asked for and read."""

    ANSWER_SPEC: ClassVar[AnswerSpec] = AnswerSpec()
    DEFAULT_STYLE: ClassVar[AnswerStyle] = "plain"  # of the task's own prompt

    style: str | None = None  # plain, answer, cot, direct, r1; None: the task's own

    @property
    def answer_spec(self) -> AnswerSpec:
        forms: tuple[AnswerForm, ...] = getattr(self, "forms", ())
        return replace(self.ANSWER_SPEC, forms=forms, allow_bare="bare" in forms) if forms else self.ANSWER_SPEC

    @property
    def resolved_style(self) -> AnswerStyle:
        """The style in which answers are asked for."""
        if self.style is None:
            own = "plain" if self._has_custom_prompt else self.DEFAULT_STYLE
            return "direct" if own in ("answer", "cot") and self.answer_spec.forms == ("bare",) else own
        style = find_style(self.style)
        if style in ("answer", "cot") and self.answer_spec.forms == ("bare",):
            raise UsageError(f"style {style} asks for more than a bare answer: leave out forms, or take style=direct")
        return style

    @property
    def answer_forms(self) -> tuple[AnswerForm, ...]:
        """The forms in which the verifier reads an answer; gold is written in the first."""
        return styles.accepted_forms(self.resolved_style, self.answer_spec)

    def with_instruction(self, question: str) -> str:
        """The question as it is sent."""
        silent = self.style is None and self._has_custom_prompt
        return question if silent else styles.question_with_instruction(question, self.resolved_style, self.answer_spec)

    def make_problem(self, id: str, question: str, answer: Any, tags: Any = None) -> Problem:
        """The problem with this question, asked in the style."""
        text = self.with_instruction(question)
        system, instruction = getattr(self, "system", None), text.removeprefix(question)
        return Problem(id, user_messages(text, system), answer, tags or {}, self.resolved_style, instruction)

    def gold_completion(self, answer: str, worked: str = "") -> str:
        """A completion that gives this answer in the style's form."""
        return styles.gold_completion(
            answer, self.resolved_style, "bare" if self.answer_spec.place else self.answer_forms[0], worked
        )

    def restyle(self, style: str) -> Self:
        """The same task, asked in another style."""
        only_bare = getattr(self, "forms", ()) == ("bare",) and style in ("answer", "cot")
        return replace(self, style=find_style(style), **({"forms": ()} if only_bare else {}))

    @property
    def _has_custom_prompt(self) -> bool:
        known = type(self).__dataclass_fields__.get("prompt")
        return known is not None and getattr(self, "prompt", None) != known.default


@dataclass(frozen=True)
class StyleWrapper(WrappedTask):
    """Adds the instruction of a style to the questions of a task without styles. Its verifier then also reads the form
    that the instruction asks for, where it has forms."""

    task: Task
    style: str

    def __post_init__(self) -> None:
        find_style(self.style)

    @property
    def train(self) -> Sequence[Problem]:
        return _StyledProblems(self.task.train, find_style(self.style), self._answer_spec)

    @property
    def test(self) -> Sequence[Problem]:
        return _StyledProblems(self.task.test, find_style(self.style), self._answer_spec)

    @property
    def verifier(self) -> Scorer:
        verifier: Any = self.task.verifier
        if not _has_forms(verifier):
            return self.task.verifier
        forms = styles.accepted_forms(find_style(self.style), self._answer_spec)
        more: Scorer = replace(verifier, forms=tuple(dict.fromkeys((*forms, *verifier.forms))))
        return more

    def restyle(self, style: str) -> StyleWrapper:
        return replace(self, style=style)

    @property
    def _answer_spec(self) -> AnswerSpec:
        verifier: Any = self.task.verifier
        return AnswerSpec(forms=verifier.forms) if _has_forms(verifier) else AnswerSpec()


def with_style(task: Task, style: str) -> Task:
    """The task, asked in this style."""
    own = getattr(task, "restyle", None)
    styled: Task = StyleWrapper(task, style) if own is None else own(style)
    return styled


def _has_forms(verifier: Any) -> bool:
    return is_dataclass(verifier) and not isinstance(verifier, type) and bool(getattr(verifier, "forms", ()))


class _StyledProblems(LazyProblems):
    """Problems with an instruction after each."""

    def __init__(self, problems: Sequence[Problem], style: AnswerStyle, spec: AnswerSpec) -> None:
        self.problems, self.style, self.answer_spec = problems, style, spec

    def __len__(self) -> int:
        return len(self.problems)

    def problem_at(self, index: int) -> Problem:
        problem = self.problems[index]
        messages: list[Message] = [dict(m) for m in problem.messages]
        if not messages or problem.style == self.style:
            return problem
        content = messages[-1]["content"]
        before = content_text(content)
        text = styles.question_with_instruction(before, self.style, self.answer_spec)
        messages[-1] = {**messages[-1], "content": with_text(content, text)}
        return replace(
            problem,
            messages=tuple(messages),
            style=self.style,
            answer_instruction=problem.answer_instruction + text.removeprefix(before),
        )
