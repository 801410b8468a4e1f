"""The words after a number: a unit with its dimension and size, counted things, or words that change the number.

Known units are a small exact table: 5 m/s is 18 km/h and not 5 km/h. Other words pass only if they can be nothing but
counted things (42 apples, 12 square units): "42 halved" and "42 in octal" are not 42.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Dimensions = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: a size in base units of some dimensions, or a counted noun. Neither: no unit is known."""

    dimensions: Dimensions = ()
    size: Fraction = Fraction(1)
    counted_noun: str = ""

    def __bool__(self) -> bool:
        return bool(self.dimensions or self.counted_noun)


NO_UNIT = Unit()

# The dimension, the size in its base unit, the words for the unit. Plurals in -s and prefixes are not listed:
# kilometers come from `_PREFIXES`, km from `_LETTERS` and `_SYMBOLS`.
_TABLE = """
length      1                           meter metre
length      1000                        kms
length      1/1000000                   micron
length      127/5000                    in inch inches
length      381/1250                    ft foot feet
length      1143/1250                   yd yard
length      201168/125                  mi mile
length      1852                        nautical-mile
mass        1                           gram gramme
mass        1000                        kilo
mass        1000000                     tonne
mass        45359237/100000             lb lbs pound
mass        45359237/1600000            oz ounce
mass        90718474/100                ton
time        1                           sec second
time        60                          min minute
time        3600                        h hr hour
time        86400                       day
time        604800                      week wk
time        1209600                     fortnight
calendar    1                           month mo
calendar    12                          year yr
calendar    120                         decade
calendar    1200                        century centuries
usd         1                           dollar usd buck
usd         1/100                       cent penny pennies
usd         1/20                        nickel
usd         1/10                        dime
eur         1                           euro eur
gbp         1                           gbp pound quid
gbp         1/100                       pence
inr         1                           rupee inr
jpy         1                           yen jpy
cny         1                           yuan cny
rub         1                           ruble rouble
chf         1                           franc
mxn         1                           peso
volume      1                           liter litre
volume      1/1000                      cc
volume      473176473/125000000         gallon gal
volume      473176473/500000000         quart qt
volume      473176473/1000000000        pint pt
volume      473176473/2000000000        cup
angle       1                           degree deg
angle       1/60                        arcminute
angle       1/3600                      arcsecond
radians     1                           radian rad
share       1                           percent
part        1                           unit
celsius     1                           celsius
fahrenheit  1                           fahrenheit
kelvin      1                           kelvin
am          1                           am
pm          1                           pm
current     1                           ampere amp
charge      1                           coulomb
frequency   1                           hertz
force       1                           newton
energy      1                           joule
energy      1/6241509074000000000       electronvolt
energy      4184/1000                   calorie
energy      3600000                     kwh
power       1                           watt
voltage     1                           volt
resistance  1                           ohm
pressure    1                           pascal
pressure    101325                      atm atmosphere
amount      1                           mole
data        1                           bit
data        8                           byte
"""
_UNITS_BY_WORD: dict[str, list[tuple[str, Fraction]]] = {}
for _line in _TABLE.strip().splitlines():
    _dimension, _size, *_words = _line.split()
    for _word in _words:
        _UNITS_BY_WORD.setdefault(_word, []).append((_dimension, Fraction(_size)))
_PREFIXES = {
    "nano": Fraction(1, 10**9), "micro": Fraction(1, 10**6), "milli": Fraction(1, 1000), "centi": Fraction(1, 100),
    "deci": Fraction(1, 10), "kilo": Fraction(1000), "mega": Fraction(10**6), "giga": Fraction(10**9),
    "tera": Fraction(10**12),
}  # fmt: skip
_LETTERS = {"n": "nano", "u": "micro", "µ": "micro", "μ": "micro", "m": "milli", "c": "centi", "d": "deci", "k": "kilo",
            "M": "mega", "G": "giga", "T": "tera"}  # fmt: skip
_SYMBOLS = {"m": "meter", "g": "gram", "s": "second", "N": "newton", "J": "joule", "W": "watt", "V": "volt",
            "Hz": "hertz", "Pa": "pascal", "L": "liter", "l": "liter", "mol": "mole", "cal": "calorie", "B": "byte",
            "b": "bit", "hz": "hertz", "eV": "electronvolt", "Ω": "ohm"}  # fmt: skip
_SPEEDS = {
    "mph": "mi/h",
    "kph": "km/h",
    "kmh": "km/h",
    "kmph": "km/h",
    "fps": "ft/s",
    "mps": "m/s",
    "rpm": "revolutions/min",
}
_CUBIC_METRES_PER_LITRE = Fraction(1, 1000)  # a litre in cubic metres
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
NUMBER_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "lakh": 10**5, "crore": 10**7, "bn": 10**9,
}  # fmt: skip

# Nouns that count by themselves, so that 42 of them are another number than 42; and words that end in s and are none.
_NOT_COUNTED_NOUNS = frozenset((
    "pairs", "duos", "trios", "dozens", "quarters", "halves", "halfs", "hundreds", "thousands", "millions", "billions",
    "trillions", "scores", "couples", "triples", "triplets", "quadruples", "gross", "lakhs", "lacs", "crores", "mils",
    "grands", "ks", "inverses", "reciprocals", "negatives", "opposites", "factorials", "logarithms", "complements",
    "bps",
    "permilles", "minus", "minuses", "plus", "less", "yes", "his", "hers", "thus", "is", "was", "has", "this", "as",
    "us", "its", "always", "sometimes", "perhaps", "tops", "besides", "equals", "versus", "vs", "doubles", "myriads",
    "ones", "cubes", "logs", "nots", "bits", "thirds", "twins", "braces", "whereas", "plusses", "pluses", "sos",
))  # fmt: skip
# What else ends in s and counts nothing: fifths, sevens, backwards, nevertheless.
_NO_PLURAL = re.compile(
    r"(?<!mon)(?<!pa)(?<!ba)(?<!mo)(?<!leng)(?<!bir)(?<!dea)(?<!you)ths\Z|wards\Z|ss\Z|ous\Z"
    r"|\A(?:two|three|four|five|sixe|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|[a-z]+tie)s\Z"
)
_GROUPING_ADJECTIVES = frozenset(
    ("ordered", "unordered", "distinct", "different", "possible", "such")
)  # 12 ordered pairs are 12
_COUNTED_NOUNS = frozenset((
    "people", "children", "men", "women", "feet", "mice", "geese", "teeth", "sheep", "fish", "deer", "dice", "cattle",
    "oxen", "salmon", "money", "units", "unit", "way", "person", "item", "time", "step", "point", "marble", "apple",
    "number", "sit", "total", "vertices", "indices", "matrices", "cacti", "fungi", "data", "items", "student",
))  # fmt: skip
_ADJECTIVES = frozenset((
    "different", "distinct", "total", "whole", "red", "blue", "green", "black", "white", "yellow", "possible", "more",
    "square", "cubic", "linear", "unordered", "small", "large", "big", "new", "old", "unique", "ordered", "positive",
    "distinguishable",
    "sit", "push", "pull", "full", "free", "extra", "real", "prime", "integer", "such", "us", "united", "states",
    "american", "school", "sports", "working", "hot", "cold", "baseball", "soccer", "basketball", "tennis", "golf",
    "roller", "lattice", "grid", "data", "home", "shaded", "valid", "correct", "diagonal", "straight", "boy", "girl",
))  # fmt: skip
_WORD = re.compile(r"[A-Za-z°µμΩ]+|\^\{?-?[1-9]\}?|[²³]|/|[.·]")


@lru_cache(maxsize=4096)
def parse_unit(words: str, power: str = "") -> tuple[Unit, ...] | None:
    """The units that these words may mean after a figure (m/s^2, square feet, miles per hour, red apples); None where
    they are neither a unit nor counted things. `power`: an exponent after the words."""
    words = " ".join((words + power).replace("\\", " ").split())
    if not words:
        return (NO_UNIT,)
    units = _parse_compound_unit(words)
    if units:
        return units
    noun = _counted_noun(words)
    return (Unit(counted_noun=noun),) if noun else None


def _parse_compound_unit(words: str) -> tuple[Unit, ...]:
    """Products and quotients of known units."""
    words = _SPEEDS.get(words.lower().strip("."), words)
    tokens = _WORD.findall(re.sub(r"\bper\b", "/", words))
    if "".join(tokens) != re.sub(r"\s|\bper\b", lambda m: "/" if m[0] == "per" else "", words):
        return ()
    readings: list[tuple[dict[str, int], Fraction]] = [({}, Fraction(1))]
    sign, pending, last = 1, 1, None
    for token in tokens:
        low = token.lower()
        if token == "/":
            sign, last = -1, None
        elif token in ".·":
            continue
        elif token[0] in "^²³" or low in ("squared", "cubed"):
            power = {"²": 2, "³": 3, "squared": 2, "cubed": 3}.get(low) or int(re.sub(r"[^0-9-]", "", token))
            if last is None:
                return ()
            readings = [_multiply_unit(before, meaning, sign * power) for before, meaning in last]
            last = None
        elif low in _POWERS and last is None:
            pending = _POWERS[low]
        elif meanings := _unit_meanings(token):
            last = [(before, meaning) for before in readings for meaning in meanings]
            readings = [_multiply_unit(before, meaning, sign * pending) for before, meaning in last]
            pending = 1
        else:
            return ()
    units = [Unit(tuple(sorted((d, n) for d, n in dims.items() if n)), size) for dims, size in readings]
    return tuple(unit for unit in units if unit.dimensions) if pending == 1 else ()


def _unit_meanings(token: str) -> list[tuple[str, Fraction]]:
    """Symbols by their letters, MW and mW; words in any case. K, M, B and the like are thousands as often as units."""
    if token in ("M", "B", "K", "T", "G", "b", "A", "C", "F"):
        return []
    if token in _SYMBOLS:
        return _UNITS_BY_WORD[_SYMBOLS[token]]
    if token[1:] in _SYMBOLS and token[0] in _LETTERS:
        return _prefixed(_LETTERS[token[0]], _SYMBOLS[token[1:]])
    low = token.lower()
    for word in (low, low.removesuffix("s"), low.removesuffix("es")):
        if word in _UNITS_BY_WORD and (len(word) > 2 or word == low or low in ("hrs", "yds")):
            return _UNITS_BY_WORD[word]
        prefix = next((prefix for prefix in _PREFIXES if word.startswith(prefix)), "")
        if prefix and word.removeprefix(prefix) in _UNITS_BY_WORD:
            return _prefixed(prefix, word.removeprefix(prefix))
    return _UNITS_BY_WORD[_SYMBOLS[low]] if low in _SYMBOLS and len(low) == 1 else []


def _prefixed(prefix: str, word: str) -> list[tuple[str, Fraction]]:
    return [(dimension, size * _PREFIXES[prefix]) for dimension, size in _UNITS_BY_WORD[word]]


def _multiply_unit(
    before: tuple[dict[str, int], Fraction], unit: tuple[str, Fraction], power: int
) -> tuple[dict[str, int], Fraction]:
    dimension, size = unit
    if dimension == "volume":  # a litre is a cubic decimetre
        dimension, size, power = "length", size * _CUBIC_METRES_PER_LITRE, power
        dims = {**before[0], "length": before[0].get("length", 0) + 3 * power}
    else:
        dims = {**before[0], dimension: before[0].get(dimension, 0) + power}
    return dims, before[1] * size**power


def _counted_noun(words: str) -> str:
    """The last word of counted things, without its plural; empty where the words may be something else."""
    parts = words.lower().replace(".", "").split()
    if not 1 <= len(parts) <= 4 or not all(part.replace("-", "").isalpha() for part in parts):
        return ""
    *before, last = parts
    counts = last in _NOT_COUNTED_NOUNS and not (
        last in ("pairs", "triples", "triplets") and _GROUPING_ADJECTIVES & set(before)
    )
    plural = last.endswith("s") and len(last) > 2 and not counts and not _NO_PLURAL.search(last)
    if not (plural or last in _COUNTED_NOUNS):
        return ""
    if any(word not in _ADJECTIVES and word not in _COUNTED_NOUNS and not _unit_meanings(word) for word in before):
        return ""
    return last.removesuffix("s") if last not in _COUNTED_NOUNS else last


def conversion_factors(one: tuple[Unit, ...], other: tuple[Unit, ...]) -> tuple[Fraction, ...]:
    """The factors that convert the second figure into the first one's unit; empty where the units do not match.

    A figure without a unit may have any. Counted things match by name.
    """
    factors: list[Fraction] = []
    for a in one or (NO_UNIT,):
        for b in other or (NO_UNIT,):
            if not a or not b:
                factors.append(Fraction(1))
            elif a.counted_noun or b.counted_noun:
                if a.counted_noun == b.counted_noun or "unit" in (a.counted_noun, b.counted_noun):
                    factors.append(Fraction(1))
            elif {a.dimensions, b.dimensions} in _DEGREES:
                factors.append(Fraction(1))
            elif a.dimensions == b.dimensions:
                factors.append(b.size / a.size)
            elif _generic(a) or _generic(b):
                factors.append(Fraction(1))
    return tuple(dict.fromkeys(factors))


_ANGLE = (("angle", 1),)
_DEGREES = ({_ANGLE, (("celsius", 1),)}, {_ANGLE, (("fahrenheit", 1),)})  # 20° may be of either scale


def _generic(unit: Unit) -> bool:
    """Whether this is the generic "unit" or "square units", a length without a name."""
    return {name for name, _ in unit.dimensions} == {"part"}
