"""Filters on questions: length, language, duplicates, and contamination with held-out problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from ponder import registry
from ponder.errors import UnknownName, UsageError
from ponder.filter_report import FilterReport
from ponder.measure.diagnostics.contamination import find_contamination, normalized_words
from ponder.protocols import Task
from ponder.runs.trust import names_code
from ponder.tasks.answer_style import StyledTask
from ponder.tasks.question_identity import bare_question
from ponder.tasks.synthetic.deduplicate import embedding_near_duplicates, exact_duplicates, near_duplicates
from ponder.types import Problem
from ponder.verify.rewards.language_consistency import language_share
from ponder.verify.rewards.language_data import LANGUAGES


@dataclass(frozen=True)
class Filters:
    """Which questions to keep.

    `decontaminate_against`: a question must not share `ngram` words in a row (8, as for s1K) with a held-out question
    of these tasks, unless many questions hold those words. `embedder`: a function `module:function` from texts to
    vectors, which finds near duplicates in place of MinHash. `keep_duplicates`: leave duplicates in, to learn what
    dropping them is worth.
    """

    min_chars: int = 10  # characters
    max_chars: int = 4_000
    language: str | None = None
    min_language_share: float = 0.9  # share of a question that must be in that language
    dedup_threshold: float = 0.8  # Jaccard similarity (or cosine) from which two are one; 0: only word for word
    embedder: str | None = field(default=None, metadata=names_code())
    decontaminate_against: tuple[Task, ...] = ()
    ngram: int = 8
    keep_duplicates: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_chars <= self.max_chars:
            raise UsageError(f"questions of {self.min_chars} to {self.max_chars} characters: there are none")
        if self.language is not None and self.language not in LANGUAGES:
            raise UnknownName("language", self.language, LANGUAGES)
        if not 0 <= self.dedup_threshold <= 1 or not 0 <= self.min_language_share <= 1 or self.ngram < 2:
            raise UsageError("dedup_threshold and min_language_share lie between 0 and 1, and ngram is at least 2")

    def validate(self) -> None:
        """Refuse at once what would fail later, after much work."""
        if self.embedder is not None:
            registry.import_object(self.embedder)
        elif self.dedup_threshold and not self.keep_duplicates:
            near_duplicates([], self.dedup_threshold)
        for task in self.decontaminate_against:
            without_instruction(task).test[:1]

    def __call__(
        self, problems: Sequence[Problem], report: FilterReport, source_task: Task | None = None
    ) -> list[Problem]:
        """The problems to keep, in order; of duplicates the first. `source_task`: the task that they are made from,
        whose test problems must not come back word for word."""
        left = [p for p in problems if self._has_fitting_text(bare_question(p), report)]
        if not self.keep_duplicates:
            same = exact_duplicates([bare_question(p) for p in left])
            left = _without_duplicates(left, same, "not a repetition", "word for word", report)
        if self.dedup_threshold and left and not self.keep_duplicates:
            texts = [bare_question(p) for p in left]
            same = (
                near_duplicates(texts, self.dedup_threshold)
                if self.embedder is None
                else embedding_near_duplicates(registry.import_object(self.embedder), texts, self.dedup_threshold)
            )
            left = _without_duplicates(left, same, "not nearly one", f"{self.dedup_threshold:.0%} alike", report)
        if source_task is not None and left:
            tests = {tuple(normalized_words(bare_question(p))) for p in without_instruction(source_task).test}
            why = f"a test problem of {source_task.name}"
            left = [
                p
                for p in left
                if report.record("not a test problem", tuple(normalized_words(bare_question(p))) not in tests, why)
            ]
        if self.decontaminate_against and left:
            held_out = [
                (p.id, bare_question(p)) for task in self.decontaminate_against for p in without_instruction(task).test
            ]
            contamination = find_contamination(
                held_out,
                [(str(i), bare_question(p)) for i, p in enumerate(left) if normalized_words(bare_question(p))],
                self.ngram,
            )
            flagged = {int(overlap.problem) for overlap in contamination.flagged}
            why = f"shares {self.ngram} words with a held-out problem"
            left = [p for i, p in enumerate(left) if report.record("not held out", i not in flagged, why)]
        report.require_some("passed the text filters", left)
        return left

    def _has_fitting_text(self, question: str, report: FilterReport) -> bool:
        size = len(question)
        why = "too short" if size < self.min_chars else "too long"
        if not report.record("of fitting length", self.min_chars <= size <= self.max_chars, why):
            return False
        if self.language is None:
            return True
        share, _ = language_share(question, self.language)
        return report.record(
            "in one language",
            share >= self.min_language_share,
            f"less than {self.min_language_share:.0%} {self.language}",
        )


def without_instruction(task: Task) -> Task:
    """The task with bare questions, if it can leave out the answer instruction."""
    prompt = getattr(task, "prompt", None)
    if not is_dataclass(task) or isinstance(task, type) or not isinstance(prompt, str) or "{question}" not in prompt:
        return task
    style: Any = {"style": "plain"} if isinstance(task, StyledTask) else {}
    return replace(task, prompt="{question}", **style)


def _without_duplicates(
    problems: Sequence[Problem], same: Sequence[int | None], stage: str, why: str, report: FilterReport
) -> list[Problem]:
    return [p for p, first in zip(problems, same, strict=True) if report.record(stage, first is None, why)]
