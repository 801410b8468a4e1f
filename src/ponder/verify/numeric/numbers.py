"""Parse a plain number exactly, and compare two of them.

Plain: 42, -1,234.5, $42, 1/3, \\frac{1}{3}, 42\\%, 4.2\\times 10^4, x = 42, 42 apples, 42\\text{ cm},
90^\\circ, 4.2 million.
Anything that would have to be evaluated (6*7, \\sqrt{4}, 42!) is not plain: an answer that restates its question must
not count. Nothing is evaluated or rounded, and no string takes long or raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ponder.verify.numeric.units import NO_UNIT, NUMBER_SCALES, Unit, conversion_factors, parse_unit

MAX_NUMBER_CHARS = 200  # characters in an answer
MAX_EXPONENT = 400  # decimal; 1e999999999 would fill the memory


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value, or None and the reason. `percent`: written with a percent sign, which is not divided out."""

    value: Fraction | None
    percent: bool = False
    reason: str = ""
    unit: tuple[Unit, ...] = ()  # the units it may have


def parse_plain_number(text: str, is_gold: bool = False) -> Number:
    """Parse the whole text as one number. `is_gold`: the text is a gold answer, in which any word after the figure is a
    unit."""
    if len(text) > MAX_NUMBER_CHARS:
        return Number(None, reason="too long")
    if digits := _DIGITS.fullmatch(text):  # most answers: no need to look further
        return Number(Fraction(int(text.replace(",", "") if digits[1] else text)))
    plain = _VARIABLE.sub("", _simplified(text), count=1)
    match = _WHOLE.fullmatch(plain)
    if not plain:
        return Number(None, reason="no answer")
    if not match or (match["outer"] and match["inner"]):
        return Number(None, reason="malformed")
    words = (match["named"] or match["words"] or "").strip()
    value = _magnitude(match)
    percent = bool(match["percent"]) or words.lower() in ("percent", "per cent")
    scale, _, rest = words.partition(" ")
    if value is not None and scale.lower() in NUMBER_SCALES:  # 2.5 million dollars
        value, words = value * NUMBER_SCALES[scale.lower()], rest
    unit = () if percent and not match["percent"] else _unit(words, match["exponent"] or "", match["currency"], is_gold)
    if value is None or unit is None:
        return Number(None, reason="malformed")
    return Number(-value if "-" in (match["outer"], match["inner"]) else value, percent, unit=unit)


def _unit(words: str, power: str, currency: str, is_gold: bool) -> tuple[Unit, ...] | None:
    """The unit that the words and signs around a figure name; None where they are not a unit."""
    unit = parse_unit(words, power)
    if unit is None and is_gold:
        unit = (Unit(counted_noun=words.lower().removesuffix("s")),)
    if unit == (NO_UNIT,):
        unit = parse_unit(_CURRENCY[currency]) if currency else ()
    return unit


def numbers_equal(answer: str, gold: str, tolerance: float = 0.0) -> bool:
    """True where both are plain numbers and the same one, within a share `tolerance` of the gold."""
    return same_number(parse_plain_number(answer), parse_plain_number(gold), tolerance)


def same_number(answer: Number, gold: Number, tolerance: float = 0.0) -> bool:
    """A percentage equals another percentage, its hundredth, or the bare figure (as in "what percent ...?").

    A gold figure of at most one is a share already: 0.5% is not 0.5.
    """
    if answer.value is None or gold.value is None:
        return False
    if answer.percent == gold.percent:
        value, truth = answer.value, gold.value
        if not (answer.unit and gold.unit):
            return _close(value, truth, tolerance)
        return any(_close(value * factor, truth, tolerance) for factor in conversion_factors(gold.unit, answer.unit))
    if answer.unit or gold.unit:
        return False
    part = Fraction(1, 100)
    scaled = (answer.value * part, gold.value) if answer.percent else (answer.value, gold.value * part)
    asks_percent = gold.percent or abs(gold.value) > 1
    return _close(*scaled, tolerance) or (asks_percent and _close(answer.value, gold.value, tolerance))


def _close(answer: Fraction, gold: Fraction, tolerance: float) -> bool:
    return answer == gold if not tolerance else abs(answer - gold) <= Fraction(tolerance) * abs(gold)


def is_unreduced_fraction(answer: str, number: Number, gold: str) -> bool:
    """Whether the answer is a fraction with a whole value and the gold is not: 84/2 for 42 may restate the question."""
    whole = number.value is not None and number.value.denominator == 1
    return whole and _FRACTION.search(answer) is not None and not _FRACTION.search(gold)


_FRACTION = re.compile(r"[0-9}]\s?/\s?[0-9{]|frac")
_WRAPPED = re.compile(
    r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*"
    r"|\\(?:text|textbf|mathbf|mathrm|bf)\{([^{}]*)\}",
    re.DOTALL,
)


def strip_delimiters(text: str) -> str:
    """Remove the maths delimiters, emphasis and full stop around the whole text."""
    text = text.strip()
    if not text or (text[-1] != "." and text[0] not in "$\\*"):
        return text
    for _ in range(4):
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].rstrip()
        match = _WRAPPED.fullmatch(text)
        if not match:
            break
        inner = next(group for group in match.groups() if group is not None)
        if "$" in inner:  # "$4$ or $2$", "$$42": delimiters that do not belong to each other
            break
        text = inner.strip()
    return text


_CURRENCY = {"$": "dollar", "€": "euro", "£": "gbp", "₹": "rupee", "¥": "yen"}
_SCALES = {"C": "celsius", "F": "fahrenheit"}

# How the same figure is typeset: on the left what people and LaTeX write, on the right what `_WHOLE` reads.
_TYPESET = (
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\{,\}|,\\!|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile(r"\\(?:color\{[a-z]{1,20}\}|displaystyle(?![a-z]))"), ""),
    (re.compile(r"\\[,!:; ]|\\q?quad(?![a-z])|(?<=[^\s\\=<>(,\[]) ?~"), " "),  # ~42 is no figure, but "about 42"
    (re.compile(r"\\[dt]frac(?![a-z])"), r"\\frac"),
    (re.compile(r"\\([$%])"), r"\1"),
    (
        re.compile(
            r"(?:\^\s?(?:\\circ|\{\s?\\circ\s?\})|°)\s?(?:\\(?:text|mathrm)\{\s?([CF])\s?\}|([CF])(?![A-Za-z]))"
        ),
        lambda m: f" {_SCALES[m[1] or m[2]]}",
    ),
    (re.compile(r"(?:\^\s?(?:\\circ|\{\s?\\circ\s?\})|°)\s*\Z"), " degrees"),
    (re.compile(r"\^\s?(?:\\circ|\{\s?\\circ\s?\})|°"), ""),
    (re.compile(r"(?<=[0-9])\s?(?:¢|\\cent(?![a-z]))"), " cents"),
)


def _simplified(text: str) -> str:
    text = strip_delimiters(text)
    for typeset, plain in _TYPESET:
        text = typeset.sub(plain, text)
    return text.strip()


_DIGITS = re.compile(r"-?(?:[0-9]+|[1-9][0-9]{0,2}((?:,[0-9]{3})+))")
_VARIABLE = re.compile(r"[A-Za-z](?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]{1,8}\}))?\s*=\s*")

_INT = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"
_WHOLE = re.compile(
    r"(?P<outer>[-+]?)\s*(?P<currency>[$€£₹¥]?)\s*(?P<inner>[-+]?)\s*"
    r"(?:"
    rf"\\frac\s?(?:\{{\s?(?P<top>-?{_INT})\s?\}}\s?\{{\s?(?P<bottom>{_INT})\s?\}}|(?P<top1>[0-9])(?P<bottom1>[0-9]))"
    rf"|(?P<over>{_INT})\s?/\s?(?P<under>{_INT})"
    rf"|(?P<decimal>{_INT}(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE](?P<e>[-+]?[0-9]{1,4})"
    r"|\s?(?:\\times|\\cdot|[×·*x])\s?10\s?\^\s?(?:\{\s?(?P<power>[-+]?[0-9]{1,4})\s?\}|(?P<power1>[-+]?[0-9]{1,4})))?"
    r")"
    r"\s*(?P<percent>%?)"
    r"(?:(?:\s*\\(?:text|textrm|mathrm|mbox)\{(?P<named>[^{}]*)\}"
    r"|\s+(?P<words>[A-Za-z]{2,}(?:[ /][A-Za-z]+){0,3}|[A-Za-z]/[A-Za-z]+))"
    r"(?P<exponent>\^\{?-?[1-3]\}?|[²³])?)?"
)


def _magnitude(match: re.Match[str]) -> Fraction | None:
    """The figure without its outer sign; None for a zero denominator or an exponent past the cap."""
    top = match["top"] or match["top1"] or match["over"]
    bottom = match["bottom"] or match["bottom1"] or match["under"]
    if top:
        below = int(bottom.replace(",", ""))
        return Fraction(int(top.replace(",", "")), below) if below else None
    exponent = int(match["e"] or match["power"] or match["power1"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    digits, _, decimals = match["decimal"].replace(",", "").partition(".")
    return Fraction(int((digits + decimals) or "0")) * Fraction(10) ** (exponent - len(decimals))
