"""Plain data across the wall of the jail: exact builtin types, bounded, as JSON without objects. Never pickle.

A value becomes a tree: None, booleans, strings, small integers and finite floats are themselves; everything else is a
list that begins with a tag, such as ["t", 1, 2] for (1, 2) or ["d", [key, value], ...] for a dict.

The tree may come from a hostile program. `loads` reads no JSON objects and `decode` builds no large dict or set whose
keys can be chosen to collide (integers hash to themselves), so reading takes time proportional to the length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

# None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, Decimal, Fraction
Plain: TypeAlias = Any
Tree: TypeAlias = Any  # None, bool, int, float, str, or a list [tag, ...]

MAX_CODEC_DEPTH = 60  # containers within containers
MAX_CODEC_INTEGER_BITS = 1 << 20
MAX_JSON_INTEGER = 1 << 53  # integers up to here are written as JSON numbers
MAX_DECIMAL_CHARS = 1000
MAX_NON_STRING_KEYS = 1000  # keys that are not strings: this many may collide without harm


class NotPlainData(ValueError):
    """A value that does not cross, or a tree that `encode` never makes."""


def dumps(tree: Tree) -> bytes:
    """A tree as bytes. ASCII, so that lone surrogates cross too."""
    return _ENCODER.encode(tree).encode("ascii")


def loads(data: bytes) -> Tree:
    """Parse bytes as a tree, in linear time; raises `NotPlainData`."""
    try:
        return _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise NotPlainData("not a tree: " + str(error)[:80]) from None


def _digits(text: str) -> int:
    if len(text) > 17:  # `encode` writes larger ones in base 16, which costs less to read
        raise NotPlainData("an integer of too many digits")
    return int(text)


def _no_objects(value: object) -> Tree:
    raise NotPlainData("a JSON object or constant, which a tree never holds")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_int=_digits, object_pairs_hook=_no_objects, parse_constant=_no_objects)


def encode(value: Plain, depth: int = 0, other: Callable[[Any], Tree] | None = None) -> Tree:
    """A value as a tree. Subclasses lose what they add: only the builtin value crosses.

    `other` may give a tree for a value of any other type; without it there is none.
    """
    if depth > MAX_CODEC_DEPTH:
        raise NotPlainData(f"more than {MAX_CODEC_DEPTH} containers within containers")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, str):
        return _text(value if kind is str else str.__str__(value)[:])
    if issubclass(kind, int):
        return _integer(int.__add__(value, 0))
    if issubclass(kind, float):
        return _real(float.__add__(value, 0.0) if kind is not float else value)
    if issubclass(kind, (list, tuple)):
        tag = "l" if issubclass(kind, list) else "t"
        return [tag, *[encode(v, depth + 1, other) for v in (list if tag == "l" else tuple).__iter__(value)]]
    if issubclass(kind, dict):
        pairs: Iterable[tuple[Any, Any]] = dict.items(value)
        return ["d", *[[encode(k, depth + 1, other), encode(v, depth + 1, other)] for k, v in pairs]]
    if issubclass(kind, (set, frozenset)):
        return ["s" if issubclass(kind, set) else "z", *[encode(v, depth + 1, other) for v in value]]
    if kind is bytes or kind is bytearray:
        return ["b", bytes(value).hex()]
    if kind is complex:
        return ["c", _real(value.real), _real(value.imag)]
    if kind is range:
        return ["r", _integer(value.start), _integer(value.stop), _integer(value.step)]
    if kind is Decimal:
        return ["m", _written(value)]
    if kind is Fraction:
        return ["q", _integer(_short(value.numerator)), _integer(_short(value.denominator))]
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), depth + 1, other)
    if other is not None:
        return other(value)
    raise NotPlainData(f"a value of type {kind.__name__!r} does not leave the jail; only plain data does")


def _text(value: str) -> Tree:
    try:
        value.encode()
        return value
    except UnicodeEncodeError:  # two lone surrogates would come out of JSON as one character
        return ["u", value.encode("utf-8", "surrogatepass").hex()]


def _integer(value: int) -> Tree:
    if -MAX_JSON_INTEGER < value < MAX_JSON_INTEGER:
        return value
    if value.bit_length() > MAX_CODEC_INTEGER_BITS:
        raise NotPlainData(f"an integer of more than {MAX_CODEC_INTEGER_BITS} bits")
    return ["i", hex(value)]


def _real(value: float) -> Tree:
    return value if value - value == 0 else ["f", repr(value)]  # inf and nan are no JSON numbers


def decode(tree: Tree, depth: int = 0, other: Callable[[list[Any]], Any] | None = None, safe: bool = True) -> Plain:
    """The value of a tree; raises `NotPlainData`. `safe=False` builds dicts and sets of any size, for use in a jail."""
    if depth > MAX_CODEC_DEPTH + 1:
        raise NotPlainData("too deep")
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if type(tree) is not list or not tree or type(tree[0]) is not str:
        raise NotPlainData("no tag")
    tag, rest = tree[0], tree[1:]
    if tag in "ltszd" and len(tag) == 1:
        return _container(tag, rest, depth, other, safe)
    try:
        return _SCALARS[tag](*rest)
    except KeyError:
        if other is not None:
            return other(tree)
        raise NotPlainData(f"the unknown tag {tag[:10]!r}") from None
    except (ValueError, TypeError, ArithmeticError):
        raise NotPlainData(f"malformed data under the tag {tag[:10]!r}") from None


def _container(tag: str, rest: list[Any], depth: int, other: Callable[[list[Any]], Any] | None, safe: bool) -> Plain:
    def inner(tree: Tree) -> Plain:
        return decode(tree, depth + 1, other, safe)

    if tag in "lt":
        return [inner(v) for v in rest] if tag == "l" else tuple(inner(v) for v in rest)
    if tag == "d" and not all(type(pair) is list and len(pair) == 2 for pair in rest):
        raise NotPlainData("a dict of something else than pairs")
    keys = [inner(pair[0] if tag == "d" else pair) for pair in rest]
    if safe and len(keys) > MAX_NON_STRING_KEYS and not all(type(k) is str for k in keys):
        raise NotPlainData(f"more than {MAX_NON_STRING_KEYS} keys that are not strings")
    try:
        if tag == "d":
            return dict(zip(keys, [inner(pair[1]) for pair in rest], strict=True))
        return set(keys) if tag == "s" else frozenset(keys)
    except TypeError:
        raise NotPlainData("a key that cannot be hashed") from None


def _long(digits: str) -> int:
    if type(digits) is not str or len(digits) > MAX_CODEC_INTEGER_BITS // 4 + 4:
        raise ValueError
    return int(digits, 16)


def _whole(tree: Tree) -> int:
    if type(tree) is list and len(tree) == 2 and tree[0] == "i":
        return _long(tree[1])
    if type(tree) is not int:
        raise TypeError
    return tree


def _float(tree: Tree) -> float:
    if type(tree) is list and len(tree) == 2 and tree[0] == "f":
        return _odd(tree[1])
    if type(tree) is not float:
        raise TypeError
    return tree


def _odd(name: str) -> float:
    if name not in ("inf", "-inf", "nan"):
        raise ValueError
    return float(name)


def _decimal(text: str) -> Decimal:
    if type(text) is not str or len(text) > MAX_DECIMAL_CHARS:
        raise ValueError
    return _bounded(Decimal(text))


def _written(value: Decimal) -> str:
    text = str(_bounded(value))
    if len(text) > MAX_DECIMAL_CHARS:
        raise NotPlainData(f"a decimal of more than {MAX_DECIMAL_CHARS} characters")
    return text


def _bounded(value: Decimal) -> Decimal:
    """Refuse decimals with a large exponent: they are short to write, and have up to a billion digits."""
    if value.is_finite() and abs(value.adjusted()) > 1000:
        raise NotPlainData("a decimal of more than 1000 digits")
    return value


def _short(value: int) -> int:
    """Refuse long terms of fractions: `Fraction` reduces them in quadratic time."""
    if value.bit_length() > 4096:
        raise NotPlainData("a fraction of more than 4096 bits")
    return value


_SCALARS: dict[str, Callable[..., Any]] = {
    "i": _long,
    "f": _odd,
    "b": bytes.fromhex,
    "u": lambda digits: bytes.fromhex(digits).decode("utf-8", "surrogatepass"),
    "c": lambda real, imag: complex(_float(real), _float(imag)),
    "r": lambda start, stop, step: range(_whole(start), _whole(stop), _whole(step)),
    "m": _decimal,
    "q": lambda above, below: Fraction(_short(_whole(above)), _short(_whole(below))),
}
