"""The sandbox codec: what is encoded comes back, and bytes of a hostile program give a value or `NotPlainData`."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st

from fuzz.fuzzing import corpus, fuzz
from ponder.verify.sandbox.codec import NotPlainData, decode, dumps, encode, loads
from verify.sandbox.test_codec import VALUES, alike

TAGS = st.sampled_from([*"ltszdifbucrmq", "", "lt", "x", "g"])
LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | st.sampled_from(["inf", "-inf", "nan", "sNaN", "0x" + "f" * 300, "1e999999999", "00"])
)  # fmt: skip
TREES = st.recursive(LEAVES, lambda inner: st.builds(lambda tag, rest: [tag, *rest], TAGS, st.lists(inner, max_size=4)))


def received(data: bytes) -> None:
    """Whatever bytes come, they are a value or refused; a value that came crosses again unchanged."""
    try:
        value = decode(loads(data))
    except NotPlainData:
        return
    assert spelled(decode(loads(dumps(encode(value))))) == spelled(value)


def spelled(value: Any) -> Any:
    """A value as something that equals itself: nan too, and a set or dict in any order."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [spelled(v) for v in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(repr(spelled(v)) for v in value)
    if isinstance(value, dict):
        return "dict", sorted(repr((spelled(k), spelled(v))) for k, v in value.items())
    return repr(value)


@pytest.mark.parametrize("data", corpus("codec"), ids=lambda text: text[:40])
def test_corpus_of_codec(data: str) -> None:
    received(data.encode("utf-8", "surrogateescape"))


@fuzz(TREES)
def test_decode_of_any_tree_is_a_value_or_refused(tree: Any) -> None:
    received(json.dumps(tree).encode())


@fuzz(st.binary(max_size=60))
def test_loads_of_any_bytes_is_a_value_or_refused(data: bytes) -> None:
    received(data)


@fuzz(VALUES, st.data())
def test_loads_of_a_changed_byte_is_a_value_or_refused(value: Any, data: st.DataObject) -> None:
    line = bytearray(dumps(encode(value)))
    line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    received(bytes(line))


@fuzz(st.integers(0, 1200), st.integers(0, 1200), st.integers(0, 1))
def test_decode_accepts_what_encode_writes(before: int, after: int, sign: int) -> None:
    """Long decimals: the limit of one side is the limit of the other."""
    value = Decimal("-" * sign + "7" * before + "0." + "3" * after)
    try:
        tree = encode(value)
    except NotPlainData:
        return
    assert alike(decode(loads(dumps(tree))), value)
