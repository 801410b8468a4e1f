"""Plain data across the wall: what goes in comes out, and hostile bytes cost no more than their length."""

import math
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.verify.sandbox.codec import (
    MAX_CODEC_DEPTH,
    MAX_CODEC_INTEGER_BITS,
    MAX_NON_STRING_KEYS,
    NotPlainData,
    decode,
    dumps,
    encode,
    loads,
)

SURROGATES = st.characters(categories=["Cs"])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20)
    | st.complex_numbers() | st.decimals() | st.fractions() | st.text(SURROGATES, max_size=3)
)  # fmt: skip
KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4) | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=10,
)  # fmt: skip


def alike(a, b):
    """Equal in type and value, nan and the sign of zero included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a != a and b != b) or (math.copysign(1, a) == math.copysign(1, b) and a == b)
    if isinstance(a, complex):
        return alike(a.real, b.real) and alike(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    return str(a) == str(b) if isinstance(a, Decimal) else a == b


@given(VALUES)
def test_encode_and_decode_round_trip(value):
    for safe in (True, False):
        assert alike(decode(loads(dumps(encode(value))), safe=safe), value)


def test_encode_keeps_only_the_builtin_value_of_subclasses():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Text(str):
        def __str__(self):
            return "other"

    Point = namedtuple("Point", "x y")
    Kind = IntEnum("Kind", "A B")
    values = [Liar(3), Text("t"), Point(1, 2), Kind.B, Counter("aa"), OrderedDict(a=1), defaultdict(int, b=2)]
    got = decode(encode(values))
    assert got == [3, "t", (1, 2), 2, {"a": 2}, {"a": 1}, {"b": 2}]
    assert [type(v) for v in got] == [int, str, tuple, int, dict, dict, dict]
    assert got[0] != 4


def test_encode_converts_numpy_to_plain_data():
    import numpy as np

    assert decode(encode([np.float64(1.5), np.arange(3), np.bool_(True)])) == [1.5, [0, 1, 2], True]


@pytest.mark.parametrize("value", [object(), lambda: 0, iter([]), type, {1: object()}, [[object()]], ...])
def test_encode_refuses_other_types(value):
    with pytest.raises(NotPlainData):
        encode(value)


def test_encode_enforces_bounds():
    deep: list = []
    for _ in range(MAX_CODEC_DEPTH + 1):
        deep = [deep]
    loop: list = []
    loop.append(loop)
    for value in (deep, loop, 1 << MAX_CODEC_INTEGER_BITS):
        with pytest.raises(NotPlainData):
            encode(value)
    assert decode(encode((1 << MAX_CODEC_INTEGER_BITS) - 1)) == (1 << MAX_CODEC_INTEGER_BITS) - 1


HOSTILE = [
    b"", b"{}", b'{"a":1}', b"NaN", b"[NaN]", b"Infinity", b"\xff\xfe", b"[" * 100_000 + b"]" * 100_000, b'["l"', b"[",
    b"9" * 10_000, b'"\\ud800', b"\x00", b"1 2", b"[1,]",
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE)
def test_loads_refuses_bytes_that_are_no_tree(data):
    with pytest.raises(NotPlainData):
        loads(data)


TREES = [
    [], [1], [None], ["x"], ["l", ["zz"]], ["lt", 1], ["", 1], ["i"], ["i", 5], ["i", "xyz"],
    ["i", "f" * MAX_CODEC_INTEGER_BITS],
    ["f", "1.0"], ["f", 1], ["b", "0"], ["b", 1], ["c", 1.0], ["c", 1, 2], ["r", 1, 2], ["r", 1, 2, 0], ["m", "x"],
    ["m", "1" * 2000], ["q", 1, 0], ["q", 1.0, 2], ["d", 1], ["d", [1]], ["d", [1, 2, 3]], ["d", [["l"], 1]],
    ["s", ["l"]], ["r", "a", 1, 1], ["u", "ff"], ["u", 1], ["h", 0], ["g", 1], ["y", "int"], ["i", "1", "2"],
    ["t", {"a": 1}],
]  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_decode_refuses_trees_that_encode_never_makes(tree):
    with pytest.raises(NotPlainData):
        decode(tree)


def test_decode_bounds_depth():
    tree = ["l"]
    for _ in range(500):
        tree = ["l", tree]
    with pytest.raises(NotPlainData):
        decode(tree)


def test_decode_is_fast_on_colliding_keys():
    keys = [["i", hex((i + 1) * ((1 << 61) - 1))] for i in range(30_000)]
    started = time.thread_time()
    for tree in (["s", *keys], ["d", *([k, 0] for k in keys)], ["z", *(["t", k] for k in keys)]):
        with pytest.raises(NotPlainData, match=str(MAX_NON_STRING_KEYS)):
            decode(tree)
    assert time.thread_time() - started < 5
    few = decode(["s", *keys[:MAX_NON_STRING_KEYS]])
    assert len(few) == MAX_NON_STRING_KEYS
    assert decode(["d", *([str(i), i] for i in range(5000))]) == {str(i): i for i in range(5000)}


def test_fractions_and_decimals_keep_their_type():
    assert [type(v) for v in decode(encode([Fraction(1, 3), Decimal("1.10"), range(3)]))] == [Fraction, Decimal, range]
