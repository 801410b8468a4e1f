"""One value of an answer: a number, an expression or words, with its unit, percent sign or base."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ponder.verify.maths.equivalence import approximate_values
from ponder.verify.maths.expression_tree import FUNCTIONS, ExpressionNode, parse_expression
from ponder.verify.maths.normalize_latex import UnreadableAnswer
from ponder.verify.numeric.numbers import parse_plain_number
from ponder.verify.numeric.units import Unit, parse_unit


@dataclass(frozen=True)
class AnswerValue:
    text: str  # the normalized LaTeX
    body: str = ""  # the text without unit and percent sign
    unit: tuple[Unit, ...] = ()  # the units it may have; empty: any
    percent: bool = False
    base: str = ""  # of 52_8, whose digits are the body; or the modulus of 3 \\pmod{7}
    words: str = ""  # set where the value is words, or a symbol such as \infty that is not a number

    @cached_property
    def tree(self) -> ExpressionNode:
        """The value as an expression; raises `UnreadableAnswer` where it is not one."""
        if self.words or self.base:
            raise UnreadableAnswer("malformed")
        return _special(self.body) or parse_expression(self.body)

    @cached_property
    def symbols(self) -> frozenset[str]:
        try:
            return self.tree.symbols()
        except UnreadableAnswer:
            return frozenset()

    @cached_property
    def approximate_values(self) -> tuple[complex, ...]:
        """The value to a few digits; empty where it has none."""
        try:
            return approximate_values(self.tree)
        except UnreadableAnswer:
            return ()

    def applied(self, functions: frozenset[str]) -> ExpressionNode:
        """`tree`, parsed so that these letters before a bracket are functions and not factors."""
        return self.tree if not functions else parse_expression(self.body, functions)

    @property
    def degrees(self) -> bool:
        return any(unit.dimensions == (("angle", 1),) for unit in self.unit)

    @property
    def radians(self) -> bool:
        """Whether it may be an angle in radians: by its unit, or as a multiple of pi without a unit."""
        has_radians = any(unit.dimensions == (("radians", 1),) for unit in self.unit)
        return has_radians or (not self.unit and not self.percent and "\\pi" in self.body)

    @property
    def comparable_words(self) -> str:
        """The text as words are compared: without case, the brackets of a choice and the full stop."""
        return self.words or _normal_words(self.text)

    @property
    def choice_letter(self) -> str:
        """The letter of a choice: B, (B), \\text{B}, B., \\text{(B)}, or (B) with its text: \\text{(B)} 42."""
        match = _LETTER.fullmatch(self.text) or _LETTERED.fullmatch(self.text)
        return match[1] if match else ""


_LETTER = re.compile(r"(?:\\text\s*)?[{(\s]*([A-Z])[.)}\s]*")
_LETTERED = re.compile(r"(?:\\text\s*\{)?\s*\(([A-Z])\)[.:\s]*\}?[.:\s]*(?!.*\([A-Z]\))(?!.*\b(?:or|and)\b)\S.*")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_ATOMS = {r"\infty": r"\infty", r"+\infty": r"\infty", r"-\infty": r"-\infty", "infty": r"\infty",
          "infinity": r"\infty", "-infinity": r"-\infty", r"\emptyset": r"\emptyset"}  # fmt: skip
_SHORT_WORDS = frozenset((
    "no", "on", "up", "in", "at", "by", "to", "of", "an", "am", "pm", "we", "he", "me", "my", "go", "so", "as", "is",
    "it", "do", "if", "us", "ok",
))  # fmt: skip
_WORDS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 .,:'-]*[A-Za-z0-9])?[.!]?")
_BASE = re.compile(r"\(?([0-9A-Fa-f]+)\)?\s*_\s*(?:\{\s*(?:\\text\s*\{\s*)?([0-9]{1,2}|[a-z]{3,8})[\s}]*\}|([0-9]))")
_MODULUS = re.compile(r"(-?[0-9]+)\s*\\pmod\s*\{\s*([0-9a-z]{1,20})\s*\}")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
          "ten": "10"}  # fmt: skip
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:%|per ?cent)\s*\}|\bper ?cent)$")
_POWER = r"\^\s*(?:\{\s*-?[1-9]\s*\}|[1-9])"
_NAMED = rf"\\text\s*\{{[^{{}}]*\}}\s*(?:{_POWER})?\s*"
_UNIT = re.compile(
    r"(?P<body>.*?[0-9})\]a-z!.])\s*"
    rf"(?:(?P<text>{_NAMED}(?:[/·]?\s*{_NAMED}){{0,3}})"
    rf"|(?<=[0-9}})\].\s])\s(?P<plain>[A-Za-z]{{1,12}}(?:[ /][A-Za-z]+){{0,3}})\s*(?P<power>{_POWER})?)"
)
_DEGREES = re.compile(r"(.*?)\s*\^\\circ\s*(?:[CF](?![A-Za-z]))?")
_TRIGONOMETRY = re.compile(r"sin|cos|tan|cot|sec|csc")
_ATTACHED = re.compile(r"(.*[0-9}])\s?(cm|mm|km|kg|mph|ft|hrs?|mins?|secs?)(\^\{?[23]\}?)?")


def is_words(text: str) -> bool:
    """Words and not mathematics: \\text{east}, Tuesday, \\text{(C)}, June 20; "abcd" is a word, "xy" a product."""
    inner = _TEXT.fullmatch(text)
    if inner:
        return bool(re.search(r"[A-Za-z]", inner[1])) and parse_plain_number(inner[1]).value is None
    if not _WORDS.fullmatch(text) or parse_plain_number(text).value is not None:
        return False
    words = re.findall(r"[A-Za-z]+", text)
    if not words or any(word in FUNCTIONS or word in ("pi", "sqrt", "infty", "infinity") for word in words):
        return False
    if any(len(word) > 3 for word in words):
        return True
    unpunctuated = text.rstrip(".!")
    if not unpunctuated.isalpha():
        return False
    vowel = re.search(r"[aeiouAEIOU]", unpunctuated)
    return (
        unpunctuated.lower() in _SHORT_WORDS
        or (len(unpunctuated) > 1 and unpunctuated.isupper())
        or (len(unpunctuated) == 3 and vowel is not None)
    )


def parse_answer_value(text: str) -> AnswerValue:
    """Parse one value. Its expression is parsed later, when it is needed."""
    text = text.strip()
    compact = re.sub(r"\s", "", text)
    if compact in _ATOMS:
        return AnswerValue(text, words=_ATOMS[compact])
    if is_words(text):
        return AnswerValue(text, words=_normal_words(text))
    inner = _TEXT.fullmatch(text)
    if inner:
        text = inner[1].strip()
    base = _BASE.fullmatch(text)
    if base:
        base_name = base[2] or base[3]
        return AnswerValue(text, body=base[1].upper(), base=_BASES.get(base_name, base_name))
    modulus = _MODULUS.fullmatch(text)
    if modulus:
        return AnswerValue(text, body=modulus[1], base=f"mod {modulus[2]}")
    body, percent = _PERCENT.subn("", text)
    if "%" in body:
        raise UnreadableAnswer("malformed")
    body, unit = _without_unit(body.strip())
    if not body:
        raise UnreadableAnswer("malformed")
    return AnswerValue(text, body=body, unit=unit, percent=bool(percent))


def _normal_words(text: str) -> str:
    inner = _TEXT.fullmatch(text)
    words = re.sub(r"\s+", " ", (inner[1] if inner else text)).strip(" .!'\"")
    letter = re.fullmatch(r"\(?([A-Za-z])[).]?", words)
    return letter[1] if letter else words.casefold()


def _without_unit(text: str) -> tuple[str, tuple[Unit, ...]]:
    degrees = _DEGREES.fullmatch(text)
    if degrees and r"\circ" not in degrees[1] and not _TRIGONOMETRY.search(degrees[1]):
        return degrees[1].strip(), parse_unit("degree") or ()
    match = _UNIT.fullmatch(text)
    if match:
        in_text_command = match["text"] is not None
        words = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1 ", match["text"]) if in_text_command else match["plain"]
        if in_text_command or (len(words) > 1 and not set(words.split()) & (FUNCTIONS | {"pi", "sqrt"})):
            unit = parse_unit(words, match["power"] or "")
            if unit is None:
                raise UnreadableAnswer("malformed")
            return match["body"].strip(), unit if any(unit) else ()
    attached = _ATTACHED.fullmatch(text)
    if attached:
        return attached[1], parse_unit(attached[2], attached[3] or "") or ()
    return text, ()


_REPEATING = re.compile(r"(-?)\s*([0-9]*)\.([0-9]*)\s*\\(?:overline|bar)\s*\{?([0-9]+)\}?")
_MIXED = re.compile(r"(-?)\s*([0-9]{1,12})\s+([0-9]{1,12})\s?/\s?([0-9]{1,12})")


def _special(text: str) -> ExpressionNode | None:
    """Numbers outside the grammar of expressions: repeating decimals (0.1\\overline{36}) and mixed numbers (1 1/2)."""
    if match := _REPEATING.fullmatch(text):
        sign, whole, fixed, again = match.groups()
        value = Fraction(
            int(f"{whole or 0}{fixed}{again}") - int(f"{whole or 0}{fixed}"), 10 ** len(fixed) * (10 ** len(again) - 1)
        )
    elif match := _MIXED.fullmatch(text):
        sign, whole, top, bottom = match.groups()
        if int(top) >= int(bottom):
            return None
        value = int(whole) + Fraction(int(top), int(bottom))
    else:
        return None
    return ExpressionNode("number", number=-value if sign else value)
