"""Traces: what is recorded is read again, token by token, and no changed record raises anything but RunError."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fuzz.fuzzing import corpus, fuzz
from ponder.errors import RunError
from ponder.runs import read_traces
from ponder.runs.records import RecordWriter
from ponder.trace_json import trace_to_json
from ponder.types import Problem, Score, Step, Trace, ids, user_messages

FLOATS = st.floats(width=32)
TEXTS = st.text(max_size=6)
SCORES = st.builds(Score, st.none() | st.floats(0, 1), TEXTS)
ODD = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([2**40, 10**400, 1e308, "nan", "x", [], {}, [[1]]])
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    problem = Problem(draw(TEXTS), user_messages(draw(TEXTS)), draw(TEXTS), {"kind": draw(TEXTS)})
    steps = [Step(None, problem.question, ids(draw(st.lists(st.integers(0, 99), min_size=1, max_size=3))))]
    for i in range(draw(st.integers(0, 3))):
        tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4))
        numbers = draw(st.lists(FLOATS, min_size=len(tokens), max_size=len(tokens)))
        steps.append(
            Step(
                draw(st.integers(0, i)),
                draw(TEXTS),
                ids(tokens),
                np.array(numbers, np.float32),
                stop=draw(st.sampled_from([None, "eos", "length"])),
                scores=draw(st.dictionaries(TEXTS, SCORES, max_size=2)),
                visits=draw(st.integers(0, 9)),
                notes={"values": np.array(numbers, np.float32)},
                cites=tuple(draw(st.lists(st.integers(0, i), max_size=2))),
                pruned=draw(TEXTS),
                last=draw(st.booleans()),
            )
        )
    return Trace(problem, steps)


def read_back(*recorded: dict[str, Any]) -> list[Trace]:
    with tempfile.TemporaryDirectory() as folder:
        appender = RecordWriter(Path(folder, "traces.jsonl"))
        for record in recorded:
            appender.append(record)
        appender.close()
        return [trace for _, trace in read_traces(folder)]


def refused_or_read(record: dict[str, Any]) -> None:
    try:
        read_back(record)
    except RunError as error:
        assert "line 1 is damaged" in str(error)


@pytest.mark.parametrize("record", corpus("traces"), ids=lambda record: json.dumps(record)[:60])
def test_corpus_of_traces(record: dict[str, Any]) -> None:
    refused_or_read(record)


@fuzz(traces())
def test_traces_round_trip(trace: Trace) -> None:
    (again,) = read_back({"step": 0, **trace_to_json(trace)})
    assert (again.problem, again.cost, len(again.steps)) == (trace.problem, trace.cost, len(trace.steps))
    for ours, theirs in zip(again.steps, trace.steps, strict=True):
        for name in ("parent", "text", "stop", "scores", "visits", "cites", "pruned", "last", "sampled"):
            assert getattr(ours, name) == getattr(theirs, name)
        np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
        if ours.logprobs is not None and theirs.logprobs is not None:
            np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
        assert ours.notes.keys() == theirs.notes.keys()
        for key, values in ours.notes.items():
            np.testing.assert_array_equal(values, theirs.notes[key])
    assert json.dumps(trace_to_json(again)) == json.dumps(trace_to_json(trace))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container within a record, with every key or index of it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [spot for key, inner in inside for spot in [(value, key), *places(inner)]]


@fuzz(traces(), st.data())
def test_a_changed_trace_record_is_read_or_refused(trace: Trace, data: st.DataObject) -> None:
    record = json.loads(json.dumps(trace_to_json(trace)))
    for _ in range(data.draw(st.integers(1, 2))):
        where, key = data.draw(st.sampled_from(places(record)))
        if data.draw(st.booleans()):
            where[key] = data.draw(ODD)
        else:
            del where[key]
        if not places(record):
            break
    refused_or_read({**record, "step": 0})
