"""A penalty for text that repeats itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ponder.errors import UsageError
from ponder.types import Score
from ponder.verify.base import TextVerifier

# A word is at most 20 characters, and each sign of a script without spaces is one: "aaaa..." has repeats as well.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,20}")


@dataclass(frozen=True)
class RepetitionPenalty(TextVerifier):
    """Minus the share of word n-grams that appeared earlier in the text: 0 for none, towards -1 for a loop.

    The share is 1 - distinct / all, as in Yeo et al. 2025 (appendix). Thinking counts like the rest.
    """

    ngram_size: int = 3

    def __post_init__(self) -> None:
        if self.ngram_size < 1:
            raise UsageError(f"ngram_size is {self.ngram_size}; an n-gram has at least 1 word")

    @property
    def name(self) -> str:
        return "repetition"

    def verify(self, text: str, gold: Any) -> Score:
        share = repeated_ngram_share(text, self.ngram_size)
        return Score(-share if share else 0.0, f"{share:.0%} of its {self.ngram_size}-grams stood there before")


def repeated_ngram_share(text: str, size: int) -> float:
    """Of all n-grams of words, the share that is not the first of its kind; 0 for a text shorter than one."""
    words = _WORD.findall(text.casefold())
    grams = list(zip(*(words[i:] for i in range(size)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
