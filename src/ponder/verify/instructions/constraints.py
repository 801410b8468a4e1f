"""Verify constraints that a program can check: counts, words, shape, patterns, JSON, language.

A constraint is a mapping with a `kind` and that kind's own settings; `CONSTRAINT_KINDS` lists them all. Counts take
`at_least`, `at_most` or `exactly`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.errors import UnknownName
from ponder.types import Score
from ponder.verify.answers.structured import extract_all_text, extract_structured
from ponder.verify.base import TextVerifier, bad_data, repr_for_reason
from ponder.verify.instructions.json_schema import json_fault
from ponder.verify.instructions.regex import MAX_REGEX_TEXT_CHARS, regex_matches
from ponder.verify.rewards.language_consistency import language_share
from ponder.verify.rewards.language_data import LANGUAGES

Constraint = Mapping[str, Any]

_WORD = re.compile(r"[0-9]+(?:[.,][0-9]+)+|\w+(?:['’-]\w+)*")
_SENTENCE = re.compile(r"[.!?。！？…]+[\"'”’)\]]*(?=\s|\Z)|[。！？]")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|cf|No|Fig|approx)\.", re.IGNORECASE)
_BULLET = re.compile(r"^[ \t]{0,8}(?:[-*•+]|[0-9]{1,3}[.)])[ \t]+\S", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True)
class Constraints(TextVerifier):
    """1 where the text satisfies every constraint. `partial_credit`: the share of constraints that it satisfies.

    The problem's answer is a list of constraints, or `{"constraints": [...]}`. They apply to the text after the
    thinking. `in_answer_tag`: they apply to the content of its one `<answer>` or box.
    """

    partial_credit: bool = False
    in_answer_tag: bool = False

    @property
    def name(self) -> str:
        return "constraints"

    def verify(self, text: str, gold: Any) -> Score:
        constraints = _constraints(gold)
        extracted = (
            extract_structured(text, max_chars=MAX_REGEX_TEXT_CHARS)
            if self.in_answer_tag
            else extract_all_text(text, max_chars=MAX_REGEX_TEXT_CHARS)
        )
        for constraint in constraints:  # before the answer is read: a fault in the data is not the model's
            constraint_fault(constraint, "")
        if extracted.answer is None:
            return Score(0.0, extracted.reason)
        visible = visible_text(extracted.answer)
        if len(visible) > MAX_REGEX_TEXT_CHARS:  # NFC makes some characters longer
            return Score(0.0, "too long")
        faults = [fault for constraint in constraints if (fault := constraint_fault(constraint, visible))]
        if not faults:
            return Score(1.0, f"keeps all {len(constraints)}")
        followed = len(constraints) - len(faults)
        share = followed / len(constraints) if self.partial_credit else 0.0
        return Score(share, f"keeps {followed} of {len(constraints)}; not: {'; '.join(faults)}"[:400])


def constraint_fault(constraint: Constraint, text: str) -> str:
    """How a text from `visible_text` violates a constraint; empty where it satisfies it."""
    check, allowed = CONSTRAINT_KINDS[constraint["kind"]]
    settings = {name: value for name, value in constraint.items() if name != "kind"}
    if unknown := settings.keys() - allowed:
        bad_data(f"a {constraint['kind']!r} constraint has no {min(unknown)!r}; it takes {', '.join(sorted(allowed))}")
    return check(text, **settings)


def visible_text(text: str) -> str:
    """The text in NFC without invisible characters: a zero-width space must not split a word in two."""
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFC", text) if unicodedata.category(c) != "Cf")


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Pieces with a word in them that end in . ! ? before a space; the last may lack its end."""
    text = _ABBREVIATION.sub(lambda m: m[0].replace(".", ""), text)
    return [piece for piece in _SENTENCE.split(text) if _WORD.search(piece)]


def paragraphs(text: str) -> list[str]:
    return [piece for piece in _PARAGRAPH.split(text) if _WORD.search(piece)]


def _bounds(count: int, unit: str, at_least: Any = None, at_most: Any = None, exactly: Any = None) -> str:
    bounds = {"at_least": at_least, "at_most": at_most, "exactly": exactly}
    for name, bound in bounds.items():
        if bound is not None and (type(bound) is not int or bound < 0):
            bad_data(f"{name} is {repr_for_reason(bound)}; it must be a whole number from 0 up")
    if at_least is at_most is exactly is None:
        bad_data(f"a count of {unit} needs at_least, at_most or exactly")
    if exactly is not None and count != exactly:
        return f"{count} {unit}, not {exactly}"
    if at_least is not None and count < at_least:
        return f"{count} {unit}, fewer than {at_least}"
    return f"{count} {unit}, more than {at_most}" if at_most is not None and count > at_most else ""


def _counting(unit: str, count: Callable[[str], int]) -> Callable[..., str]:
    return lambda text, **bounds: _bounds(count(text), unit, **bounds)


def _keyword(text: str, word: Any = None, case: bool = False, **bounds: Any) -> str:
    keyword = _text("word", word)
    if not case:
        text, keyword = text.casefold(), keyword.casefold()
    count = len(re.findall(rf"(?<!\w){re.escape(keyword)}(?!\w)", text))
    return _bounds(count, f"times {repr_for_reason(word)}", **(bounds or {"at_least": 1}))


def _absent(text: str, words: Any = None) -> str:
    if isinstance(words, str) or not isinstance(words, Sequence) or not words:
        bad_data(f"words is {repr_for_reason(words)}; give a list of words that may not occur")
    present = [word for word in words if not _keyword(text, word)]
    return f"contains {repr_for_reason(present[0])}" if present else ""


def _starts(reply: str, text: Any = None) -> str:
    return "" if reply.startswith(_text("text", text)) else f"does not start with {repr_for_reason(text)}"


def _ends(reply: str, text: Any = None) -> str:
    return "" if reply.endswith(_text("text", text)) else f"does not end with {repr_for_reason(text)}"


def _case(text: str, case: Any = None) -> str:
    if case not in ("upper", "lower"):
        bad_data(f"case is {repr_for_reason(case)}; it is 'upper' or 'lower'")
    return "" if text and text == getattr(text, case)() and text.lower() != text.upper() else f"is not all {case} case"


def _regex(text: str, pattern: Any = None, whole: bool = False) -> str:
    matches = regex_matches(_text("pattern", pattern), text, "fullmatch" if whole else "search")
    return "" if matches else f"does not match {repr_for_reason(pattern)}"


def _no_regex(text: str, pattern: Any = None) -> str:
    return f"matches {repr_for_reason(pattern)}" if regex_matches(_text("pattern", pattern), text) else ""


def _json(text: str, schema: Any = None) -> str:
    return json_fault(text, {} if schema is None else schema)


def _language(text: str, language: Any = None, share: float = 0.8) -> str:
    if language not in LANGUAGES:
        bad_data(f"the language {repr_for_reason(language)} is not among {', '.join(LANGUAGES)}")
    actual_share, how = language_share(text, language)
    return "" if actual_share >= share and any(map(str.isalpha, text)) else f"is not {language}: {how}"


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        bad_data(f"{name} is {repr_for_reason(value)}; it must be some text")
    return unicodedata.normalize("NFC", value)


_COUNT = frozenset({"at_least", "at_most", "exactly"})

CONSTRAINT_KINDS: dict[str, tuple[Callable[..., str], frozenset[str]]] = {
    "words": (_counting("words", lambda t: len(words(t))), _COUNT),
    "sentences": (_counting("sentences", lambda t: len(sentences(t))), _COUNT),
    "paragraphs": (_counting("paragraphs", lambda t: len(paragraphs(t))), _COUNT),
    "lines": (_counting("lines", lambda t: sum(bool(line.strip()) for line in t.splitlines())), _COUNT),
    "characters": (_counting("characters", len), _COUNT),
    "bullets": (_counting("bullets", lambda t: len(_BULLET.findall(t))), _COUNT),
    "keyword": (_keyword, _COUNT | {"word", "case"}),
    "absent": (_absent, frozenset({"words"})),
    "starts": (_starts, frozenset({"text"})),
    "ends": (_ends, frozenset({"text"})),
    "case": (_case, frozenset({"case"})),
    "regex": (_regex, frozenset({"pattern", "whole"})),
    "no_regex": (_no_regex, frozenset({"pattern"})),
    "json": (_json, frozenset({"schema"})),
    "language": (_language, frozenset({"language", "share"})),
}


def _constraints(gold: Any) -> Sequence[Constraint]:
    constraints = gold.get("constraints") if isinstance(gold, Mapping) else gold
    if isinstance(constraints, str) or not isinstance(constraints, Sequence) or not constraints:
        bad_data(f"{repr_for_reason(gold)} is not a list of constraints")
    for constraint in constraints:
        if not isinstance(constraint, Mapping) or "kind" not in constraint:
            bad_data(f"the constraint {repr_for_reason(constraint)} is not a mapping with a 'kind'")
        if constraint["kind"] not in CONSTRAINT_KINDS:
            bad_data(str(UnknownName("kind of constraint", str(constraint["kind"]), CONSTRAINT_KINDS)))
    return constraints
