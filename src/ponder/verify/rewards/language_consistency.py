"""Detect the language of a text and whether it stays the same, by script and common words. Nothing is downloaded.

The script tells Chinese from English for certain. Languages that share a script are told apart by their commonest
words, so a few words decide nothing, and a language not listed here counts as none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ponder.errors import UnknownName
from ponder.types import Score, Trace
from ponder.verify.base import bad_data, grade_or_undecided
from ponder.verify.rewards.language_data import LANGUAGES, SCRIPTS

MAX_LANGUAGE_CHARS = 200_000  # longer texts are cut
MIN_COMMON_WORDS = 8  # common words below which only the script decides

_SCRIPT = re.compile("|".join(f"(?P<{name}>[{span}]+)" for name, span in SCRIPTS.items()))
_UNSPACED = {"kana", "han", "thai"}  # scripts without spaces: a character counts as half a word
_NOT_PROSE = re.compile(
    r"```.{0,20000}?```|\$[^$\n]{0,400}\$|\\[a-zA-Z]{1,30}|https?://\S{1,400}|</?\w{1,20}>", re.DOTALL
)


@dataclass(frozen=True)
class LanguageConsistency:
    """The share of a text that is in the language asked for, 0 to 1, after the language consistency reward of
    DeepSeek-R1: the share of the target language's words. That counts the thinking alone, this all that was written.

    `language` is a code such as "en" or "zh"; None takes the problem's tag "language", else the language of its
    question. Mathematics, code and single letters count for no language. A text without words breaks no rule and has 1.
    """

    language: str | None = None

    def __post_init__(self) -> None:
        if self.language is not None and self.language not in LANGUAGES:
            raise UnknownName("language", self.language, LANGUAGES)

    @property
    def name(self) -> str:
        return "language"

    async def __call__(self, trace: Trace, steps: Sequence[int]) -> list[Score]:
        return [grade_or_undecided(partial(self._score, trace, step)) for step in steps]

    def grade(self, text: str, language: str) -> Score:
        share, how = language_share(text, language)
        return Score(share, how)

    def _score(self, trace: Trace, step: int) -> Score:
        problem = trace.problem
        language = self.language or problem.tags.get("language") or detect_language(problem.question)
        if not isinstance(language, str) or language not in LANGUAGES:
            bad_data(
                f"the language of the question is unclear ({language}); set language, or the problem's tag 'language'"
            )
        return self.grade(trace.text(step), language)


def detect_language(text: str) -> str | None:
    """The main language of a text; None where two are equally likely or the text is too short."""
    words, scripts = _count_words_and_scripts(text)
    if not scripts:
        return None
    main = max(scripts, key=scripts.__getitem__)
    if scripts["kana"] and main in ("kana", "han"):
        return "ja"
    candidates = [code for code, profile in LANGUAGES.items() if main in profile.scripts and code != "ja"]
    if len(candidates) == 1:
        return candidates[0]
    hits = Counter({code: sum(words[w] for w in LANGUAGES[code].common_words) for code in candidates}).most_common(2)
    return hits[0][0] if hits[0][1] >= 2 and hits[0][1] > hits[1][1] else None


def language_share(text: str, language: str) -> tuple[float, str]:
    """The share of a text that can be in this language, and how it was measured."""
    words, scripts = _count_words_and_scripts(text)
    total = sum(scripts.values())
    if not total:
        return 1.0, "no words"
    profile = LANGUAGES[language]
    own = sum(scripts[s] for s in profile.scripts)
    if language == "ja" and not scripts["kana"] and own >= 10:
        own = 0  # Japanese of some length has kana
    by_script = own / total
    # Of the common words of any language in this script, those of this language.
    rivals = [t for t in LANGUAGES.values() if t.common_words and t.scripts == profile.scripts]
    common_words = frozenset[str]().union(*(t.common_words for t in rivals))
    common_count = sum(words[w] for w in common_words)
    if not profile.common_words or common_count < MIN_COMMON_WORDS:
        return by_script, f"{by_script:.0%} {language} by script"
    by_word = sum(words[w] for w in profile.common_words) / common_count
    return by_script * by_word, f"{by_script:.0%} {language} by script, {by_word:.0%} by common words"


def _count_words_and_scripts(text: str) -> tuple[Counter[str], Counter[str]]:
    """Words by spelling, and how much is written in each script (in words)."""
    words: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    for match in _SCRIPT.finditer(_NOT_PROSE.sub(" ", text[:MAX_LANGUAGE_CHARS])):
        script, run = str(match.lastgroup), match[0]
        if script in _UNSPACED:
            scripts[script] += max(1, len(run) // 2)
        elif len(run) > 1:
            scripts[script] += 1
            words[run.lower()] += 1
    return words, scripts
