"""Traces as JSON: the round trip is exact."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.trace_json import trace_from_json, trace_to_json
from ponder.types import Cost, Problem, Score, Step, Trace, ids, user_messages

FLOAT32 = st.floats(width=32, allow_nan=False)
SCORES = st.builds(Score, st.none() | FLOAT32, st.text(max_size=3))
PLAIN = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | FLOAT32 | st.text(max_size=5)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    problem = Problem(
        draw(st.text(max_size=5)), user_messages(draw(st.text(max_size=5))), draw(PLAIN | st.lists(PLAIN, max_size=3)),
        draw(st.dictionaries(st.text(max_size=3), PLAIN, max_size=2)),
    )  # fmt: skip
    trace = Trace(problem)
    for i in range(draw(st.integers(1, 6))):
        count = draw(st.integers(0, 4))
        floats = st.none() | st.lists(FLOAT32, min_size=count, max_size=count).map(lambda x: np.array(x, np.float32))
        trace.add(
            Step(
                None if i == 0 else draw(st.integers(0, i - 1)),
                draw(st.text(max_size=5)),
                ids(draw(st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count))),
                logprobs=draw(floats),
                stop=draw(st.sampled_from([None, "eos", "stop", "length"])),
                version=draw(st.integers(0, 9)),
                scores=draw(st.dictionaries(st.text(max_size=3), SCORES, max_size=2)),
                visits=draw(st.integers(0, 9)),
                value=draw(FLOAT32),
                advantages=draw(floats),
                cites=tuple(draw(st.lists(st.integers(0, 5), max_size=2))),
                prior=draw(FLOAT32),
                pruned=draw(st.sampled_from(["", "too dull"])),
                meta=draw(st.booleans()),
            )
        )  # fmt: skip
    numbers = st.integers(0, 2**40)
    trace.cost = draw(st.builds(Cost, numbers, numbers, numbers, numbers, *[st.floats(0, 1e30)] * 3, numbers))
    trace.chosen, trace.oracle, trace.failed = (
        draw(st.none() | st.integers(0, 5)),
        draw(st.booleans()),
        draw(st.text(max_size=3)),
    )
    return trace


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b) and isinstance(b, type(a))


@settings(max_examples=60)
@given(traces())
def test_trace_json_round_trip(trace: Trace) -> None:
    again = trace_from_json(json.loads(json.dumps(trace_to_json(trace))))
    assert again.problem == trace.problem and again.cost == trace.cost
    assert (again.chosen, again.oracle, again.failed) == (trace.chosen, trace.oracle, trace.failed)
    assert len(again.steps) == len(trace.steps)
    for one, two in zip(trace.steps, again.steps, strict=True):
        for f in fields(Step):
            assert same(getattr(one, f.name), getattr(two, f.name)), f.name
    assert [again.children(i) for i in range(len(again.steps))] == [trace.children(i) for i in range(len(trace.steps))]


@pytest.mark.parametrize("value", [0.1, 1 / 3, -1e-45, 3.4028235e38, math.inf, -math.inf, 1 + 2**-23, 16777217.0])
def test_float32_json_round_trip(value: float) -> None:
    trace = Trace(Problem("p", ()), [Step(None, "", ids([1]), np.array([value], np.float32))])
    again = trace_from_json(json.loads(json.dumps(trace_to_json(trace))))
    assert again.steps[0].logprobs is not None
    assert again.steps[0].logprobs.tobytes() == trace.steps[0].logprobs.tobytes()


def test_empty_array_is_read_back_as_array() -> None:
    step = Step(None, "", ids([]), np.zeros(0, np.float32), advantages=np.zeros(0, np.float32))
    (again,) = trace_from_json(json.loads(json.dumps(trace_to_json(Trace(Problem("p", ()), [step]))))).steps
    assert again.sampled and again.advantages is not None


def test_fields_with_their_default_are_not_written() -> None:
    assert trace_to_json(Trace(Problem("p", ()), [Step(None, "x", ids([1]))]))["steps"] == [
        {"parent": None, "text": "x", "token_ids": [1]}
    ]
