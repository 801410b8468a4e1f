"""The base class of rewards that papers on vision-language policies published.

Each equals its authors' formula on an honest answer: one that has the asked form, with boxes and points that can be.
What else their code pays for earns nothing here (`docs/data.md` lists it): an answer must be the one `<answer>` after
the thinking, geometry must be sound, and the parts for format are paid only with such an answer. `faithful=True` is the
formula as published, holes included, so that the difference can be measured.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ponder.types import Score
from ponder.verify.answers.structured import MAX_STRUCTURED_CHARS, InvalidJson, extract_structured
from ponder.verify.base import TextVerifier
from ponder.verify.rewards.think_format import ThinkFormat
from ponder.verify.vision.geometry import InvalidGeometry

Parts = Mapping[str, float]  # a reward's terms by name, in the order in which papers list them

_LITERAL_FORMAT = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
_FORMAT = ThinkFormat()


@dataclass(frozen=True)
class PublishedReward(TextVerifier):
    """A sum of terms. The reason of a score names each."""

    faithful: bool = False  # the authors' formula as it is, with what farms it

    def verify(self, text: str, gold: Any) -> Score:
        truth = self.parse_gold(gold)
        if self.faithful and len(text) > MAX_STRUCTURED_CHARS:  # the authors' patterns would search it for minutes
            return Score(0.0, "too long")
        if self.faithful:
            return _sum_parts(self.faithful_parts(text, truth))
        extracted = extract_structured(text, ("tag",))
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        try:
            return _sum_parts(self.parts(text, extracted.answer, truth))
        except (InvalidJson, InvalidGeometry) as why:
            return Score(0.0, f"malformed: {why}")

    @abstractmethod
    def parse_gold(self, gold: Any) -> Any:
        """What an answer is compared with. Bad data raises."""

    @abstractmethod
    def parts(self, text: str, answer: str, truth: Any) -> Parts:
        """The terms for the answer of a text. An answer that cannot be raises `InvalidGeometry` or `InvalidJson`."""

    @abstractmethod
    def faithful_parts(self, text: str, truth: Any) -> Parts:
        """The terms as the authors' code computes them. Whatever fails there is 0."""


def format_reward(text: str) -> float:
    """1 for thinking and one answer, neither empty, with nothing around them."""
    return _FORMAT.grade(text).value or 0.0


def literal_format(text: str) -> float:
    """The same as papers' code has it: one regular expression."""
    return float(_LITERAL_FORMAT.fullmatch(text) is not None)


def first_answer(text: str) -> str | None:
    """What papers' code takes for the answer: the first tag of a text, wherever it is."""
    match = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return None if match is None else match[1].strip()


def _sum_parts(parts: Parts) -> Score:
    return Score(float(sum(parts.values())), ", ".join(f"{name} {value:.3g}" for name, value in parts.items()))
