"""The words after a figure: which are a unit, which units are the same, and which words change the figure."""

from __future__ import annotations

import re

# Words after a figure that make it another figure, or no figure: 42 thousand, 42 minus one, 42 or so.
_NO_UNIT = re.compile(
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]{3,5}teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|dozen|hundreds?|thousands?|(?:m|b|tr)illions?"
    r"|half|halves|thirds?|(?:four|fif|six|seven|eigh|ten|hundred|thousand)ths"
    r"|plus|minus|times(?= )|over|squared|cubed|factorial|mod|modulo|divided|multiplied|by|less|more|than|least|most"
    r"|and|n?or|not|either|maybe|perhaps|possibly|probably|about|around|roughly|approximately|if|but|except|pi|k|is"
    r"|equals|wrong|incorrect|false|guess|unsure|likely|negative|reciprocal|inverse|base|root|choose"
    r"|unless|else|otherwise|versus|vs|to\Z|minimum|max(?:imum)?|exclud(?:ed|ing)|never|no|none|denied"
    r"|lakhs?|crores?|mn|bn|gross|mille|permille|basis|doubled?|tripled?|quadrupled?|twice|thrice|(?-i:[MB]))\b",
    re.IGNORECASE,
)


def is_unit(unit: str) -> bool:
    return re.fullmatch(r"[A-Za-z°/ .²³]*", unit) is not None and not _NO_UNIT.search(unit)


_UNITS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram", "kg": "kilogram",
    "lb": "pound lbs", "oz": "ounce", "s": "sec second", "min": "minute", "h": "hr hour", "day": "day",
    "week": "week", "month": "month", "year": "yr year", "dollar": "dollar usd", "cent": "cent", "degree": "degree deg",
    "radian": "radian rad", "l": "liter litre", "ml": "milliliter millilitre", "mph": "mph", "percent": "percent",
    "am": "am", "pm": "pm", "celsius": "celsius", "fahrenheit": "fahrenheit", "euro": "euro eur",
}  # fmt: skip
_CANONICAL = {word: unit for unit, words in _UNITS.items() for word in (unit, *words.split())}
_POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cubed": "3"}


def canonical_unit(words: str, power: str = "") -> str:
    """One name for a known unit (cm^2, square centimeters, sq cm); empty for words that are none."""
    exponent = re.sub(r"[^23]", "", power.replace("²", "2").replace("³", "3"))
    found = []
    for word in words.lower().replace(".", "").split():
        if word in _POWERS:
            exponent = _POWERS[word]
            continue
        unit = _CANONICAL.get(word) or _CANONICAL.get(word.removesuffix("s"))
        if unit is None:
            return ""
        found.append(unit)
    return f"{found[0]}{'^' + exponent if exponent else ''}" if len(found) == 1 else ""


def differ(one: str, other: str) -> bool:
    """Two canonical units that are both known and not the same; a figure without one may have any."""
    return bool(one and other) and one != other
