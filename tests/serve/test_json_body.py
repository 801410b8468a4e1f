"""`serve.json_body`: bounds on JSON before it is parsed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.serve import json_body
from ponder.serve.errors import ApiError
from ponder.serve.json_body import MAX_DEPTH, parse_body


def depth_of(value):
    """By building the value, where the body is checked by its bytes."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (1 if isinstance(value, dict | list) else 0) + max(map(depth_of, inner), default=0)


_TEXTS = st.text(alphabet='ab"\\[]{},é\n', max_size=6)
_VALUES = st.recursive(
    st.none() | st.integers() | _TEXTS, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner), max_leaves=8
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_TEXTS, _VALUES, min_size=1), st.booleans(), st.integers(1, 8))
def test_depth_is_counted_outside_of_strings(value, ascii_only, bound):
    data = b" " * 70 + json.dumps(value, ensure_ascii=ascii_only).encode()
    before, json_body.MAX_DEPTH = json_body.MAX_DEPTH, bound
    try:
        if depth_of(value) > bound:
            with pytest.raises(ApiError, match="deep"):
                parse_body(data)
        else:
            assert parse_body(data) == value
    finally:
        json_body.MAX_DEPTH = before


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_nesting_is_bounded(opening):
    closing = {"[": "]", "{": "}"}[opening[0]]
    good = '{"x":' + opening * (MAX_DEPTH - 1) + "1" + closing * (MAX_DEPTH - 1) + "}"
    assert parse_body(good.encode())["x"]
    bad = '{"x":' + opening * MAX_DEPTH + "1" + closing * MAX_DEPTH + "}"
    with pytest.raises(ApiError, match=f"more than {MAX_DEPTH} deep"):
        parse_body(bad.encode())


def test_number_of_values_is_bounded():
    with pytest.raises(ApiError, match="values"):
        parse_body(b'{"a":[' + b"{}," * 1_000_000 + b"{}]}")
    assert len(parse_body(b'{"a":[' + b"0," * 1_000_000 + b"0]}")["a"]) == 1_000_001
    assert parse_body(b'{"a":"' + b"{}," * 1_000_000 + b'"}')  # a text may have as many as it likes
