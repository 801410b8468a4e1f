"""One question of the suite, with a number or the letter of an option as its answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

QUESTIONS_PER_CATEGORY = 60  # questions in a category


@dataclass(frozen=True)
class SuiteQuestion:
    kind: str
    question: str
    answer: dict[str, Any] = field(hash=False)  # {"number": "12"}, or {"choice": "B", "options": {"A": ..., "B": ...}}


def number_question(kind: str, question: str, value: int) -> SuiteQuestion:
    return SuiteQuestion(kind, question, {"number": str(value)})


def shuffled_choice_question(
    kind: str, question: str, right: str, wrong: Sequence[str], rng: random.Random
) -> SuiteQuestion:
    """With the options in a random order."""
    listed = rng.sample([right, *wrong], len(wrong) + 1)
    return choice_question(kind, question, right, listed)


def choice_question(kind: str, question: str, right: str, listed: Sequence[str]) -> SuiteQuestion:
    """With the options in this order."""
    assert len(set(listed)) == len(listed) and right in listed
    options = {chr(ord("A") + i): text for i, text in enumerate(listed)}
    letter = next(letter for letter, text in options.items() if text == right)
    shown = "\n".join(f"({letter}) {text}" for letter, text in options.items())
    return SuiteQuestion(kind, f"{question}\n{shown}", {"choice": letter, "options": options})
