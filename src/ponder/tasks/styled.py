"""A task asks a question; a style says how to answer it (`verify.style`). Here the two come together.

`Styled` is for tasks that know what they want for an answer. Any other task takes a style as `Restyled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Self, overload

from ponder.errors import UsageError
from ponder.protocols import Scorer, Task
from ponder.types import Message, Problem, user
from ponder.verify import Form
from ponder.verify import style as styles
from ponder.verify.style import Style, Wanted, style_named


@dataclass(frozen=True, kw_only=True)
class Styled:
    """A strategy may ask for another style than the task's own. A prompt that the user wrote says itself how to
    answer, unless a style is named beside it; `forms`, where a task has them, narrow what is asked for and read."""

    WANTED: ClassVar[Wanted] = Wanted()
    STYLE: ClassVar[Style] = "plain"  # of the task's own prompt

    style: str | None = None  # plain, answer, cot, direct, r1; None: the task's own

    @property
    def wanted(self) -> Wanted:
        given: tuple[Form, ...] = getattr(self, "forms", ())
        return replace(self.WANTED, forms=given, bare="bare" in given) if given else self.WANTED

    @property
    def asks(self) -> Style:
        """The style in which answers are asked for."""
        if self.style is None:
            own = "plain" if self._own_prompt else self.STYLE
            return "direct" if own in ("answer", "cot") and self.wanted.forms == ("bare",) else own
        style = style_named(self.style)
        if style in ("answer", "cot") and self.wanted.forms == ("bare",):
            raise UsageError(f"style {style} asks for more than a bare answer: leave out forms, or take style=direct")
        return style

    @property
    def reads(self) -> tuple[Form, ...]:
        """The forms in which the verifier reads an answer; gold is written in the first."""
        return styles.forms(self.asks, self.wanted)

    def ask(self, question: str) -> str:
        """The question as it is sent."""
        silent = self.style is None and self._own_prompt
        return question if silent else styles.asked(question, self.asks, self.wanted)

    def posed(self, id: str, question: str, answer: Any, tags: Any = None) -> Problem:
        """The problem with this question, asked in the style."""
        said = self.ask(question)
        system, told = getattr(self, "system", None), said.removeprefix(question)
        return Problem(id, user(said, system), answer, tags or {}, self.asks, told)

    def stated(self, answer: str, worked: str = "") -> str:
        """A completion that gives this answer in the style's form."""
        return styles.gold(answer, self.asks, "bare" if self.wanted.place else self.reads[0], worked)

    def styled(self, style: str) -> Self:
        """The same task, asked in another style."""
        only_bare = getattr(self, "forms", ()) == ("bare",) and style in ("answer", "cot")
        return replace(self, style=style_named(style), **({"forms": ()} if only_bare else {}))

    @property
    def _own_prompt(self) -> bool:
        known = type(self).__dataclass_fields__.get("prompt")
        return known is not None and getattr(self, "prompt", None) != known.default


@dataclass(frozen=True)
class Restyled:
    """A task that knows no styles, with one said after its questions. Its verifier reads the form that is asked for,
    too, where it has forms to choose from."""

    task: Task
    style: str

    def __post_init__(self) -> None:
        style_named(self.style)

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def train(self) -> Sequence[Problem]:
        return _Told(self.task.train, style_named(self.style), self._wanted)

    @property
    def test(self) -> Sequence[Problem]:
        return _Told(self.task.test, style_named(self.style), self._wanted)

    @property
    def verifier(self) -> Scorer:
        verifier: Any = self.task.verifier
        if not _has_forms(verifier):
            return self.task.verifier
        asked = styles.forms(style_named(self.style), self._wanted)
        more: Scorer = replace(verifier, forms=tuple(dict.fromkeys((*asked, *verifier.forms))))
        return more

    def gold(self, problem: Problem) -> str:
        return self.task.gold(problem)

    def styled(self, style: str) -> Restyled:
        return replace(self, style=style)

    @property
    def _wanted(self) -> Wanted:
        verifier: Any = self.task.verifier
        return Wanted(forms=verifier.forms) if _has_forms(verifier) else Wanted()


def with_style(task: Task, style: str) -> Task:
    """The task, asked in this style."""
    own = getattr(task, "styled", None)
    found: Task = Restyled(task, style) if own is None else own(style)
    return found


def _has_forms(verifier: Any) -> bool:
    return is_dataclass(verifier) and not isinstance(verifier, type) and bool(getattr(verifier, "forms", ()))


class _Told(Sequence[Problem]):
    """Problems with an instruction after each, which is added when one is asked for."""

    def __init__(self, problems: Sequence[Problem], style: Style, wanted: Wanted) -> None:
        self.problems, self.style, self.wanted = problems, style, wanted

    def __len__(self) -> int:
        return len(self.problems)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        if isinstance(index, slice):
            return [self._one(p) for p in self.problems[index]]
        return self._one(self.problems[index])

    def _one(self, problem: Problem) -> Problem:
        given: list[Message] = [dict(m) for m in problem.messages]
        if not given or problem.style == self.style:
            return problem
        before = given[-1]["content"]
        given[-1] = {**given[-1], "content": (said := styles.asked(before, self.style, self.wanted))}
        return replace(problem, messages=tuple(given), style=self.style, told=problem.told + said.removeprefix(before))
