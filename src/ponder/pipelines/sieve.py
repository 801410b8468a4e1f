"""Which questions go on to solvers: by length, language, whether they are new, and whether they are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from ponder import names
from ponder.errors import UnknownName, UsageError
from ponder.funnel import Funnel
from ponder.measure.contamination import contamination, words
from ponder.protocols import Task
from ponder.tasks.made.rows import bare
from ponder.tasks.made.similar import alike, alike_by, distinct
from ponder.tasks.styled import Styled
from ponder.trust import names_code
from ponder.types import Problem
from ponder.verify.form.language import consistency
from ponder.verify.form.tongues import LANGUAGES


@dataclass(frozen=True)
class Sieve:
    """`against`: the tasks whose held-out questions must not come back, not even `ngram` words of one in a row (8, as
    for s1K), unless those stand in many. `embed`: a function `module:function` from texts to vectors, in place of
    MinHash.
    """

    shortest: int = 10  # characters
    longest: int = 4_000
    language: str | None = None
    pure: float = 0.9  # share of a question that must be in that language
    near: float = 0.8  # Jaccard similarity (or cosine) from which two are one; 0: only word for word
    embed: str | None = field(default=None, metadata=names_code())
    against: tuple[Task, ...] = ()
    ngram: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.shortest <= self.longest:
            raise UsageError(f"questions of {self.shortest} to {self.longest} characters: there are none")
        if self.language is not None and self.language not in LANGUAGES:
            raise UnknownName("language", self.language, LANGUAGES)
        if not 0 <= self.near <= 1 or not 0 <= self.pure <= 1 or self.ngram < 2:
            raise UsageError("near and pure lie between 0 and 1, and ngram is at least 2")

    def ready(self) -> None:
        """Refuse at once what could not work later, when much was spent."""
        if self.embed is not None:
            names.load(self.embed)
        elif self.near:
            alike([], self.near)
        for task in self.against:
            plain(task).test[:1]

    def __call__(self, problems: Sequence[Problem], funnel: Funnel, own: Task | None = None) -> list[Problem]:
        """In order; the first of those that are alike stays. `own`: the task that they are made from, whose test
        problems must not come back word for word."""
        left = [p for p in problems if self._fits(bare(p), funnel)]
        left = _first(left, distinct([bare(p) for p in left]), "not a repetition", "word for word", funnel)
        if self.near and left:
            texts = [bare(p) for p in left]
            same = alike(texts, self.near) if self.embed is None else alike_by(names.load(self.embed), texts, self.near)
            left = _first(left, same, "not nearly one", f"{self.near:.0%} alike", funnel)
        if own is not None and left:
            tests = {tuple(words(bare(p))) for p in plain(own).test}
            why = f"a test problem of {own.name}"
            left = [p for p in left if funnel.passes("not a test problem", tuple(words(bare(p))) not in tests, why)]
        if self.against and left:
            held = [(p.id, bare(p)) for task in self.against for p in plain(task).test]
            seen = contamination(held, [(str(i), bare(p)) for i, p in enumerate(left) if words(bare(p))], self.ngram)
            known = {int(overlap.problem) for overlap in seen.flagged}
            why = f"shares {self.ngram} words with a held-out problem"
            left = [p for i, p in enumerate(left) if funnel.passes("not held out", i not in known, why)]
        funnel.keep("passed the text filters", left)
        return left

    def _fits(self, question: str, funnel: Funnel) -> bool:
        size = len(question)
        why = "too short" if size < self.shortest else "too long"
        if not funnel.passes("of fitting length", self.shortest <= size <= self.longest, why):
            return False
        if self.language is None:
            return True
        share, _ = consistency(question, self.language)
        return funnel.passes("in one language", share >= self.pure, f"less than {self.pure:.0%} {self.language}")


def plain(task: Task) -> Task:
    """The task with its questions as they stand, where it can leave out how to answer them."""
    prompt = getattr(task, "prompt", None)
    if not is_dataclass(task) or isinstance(task, type) or not isinstance(prompt, str) or "{question}" not in prompt:
        return task
    style: Any = {"style": "plain"} if isinstance(task, Styled) else {}
    return replace(task, prompt="{question}", **style)


def _first(
    problems: Sequence[Problem], same: Sequence[int | None], stage: str, why: str, funnel: Funnel
) -> list[Problem]:
    return [p for p, as_before in zip(problems, same, strict=True) if funnel.passes(stage, as_before is None, why)]
