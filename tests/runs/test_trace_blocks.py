"""Blocks of traces: a small file from a stranger takes little memory, and what is written fits what readers take."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from ponder.errors import RunError
from ponder.runs import trace_blocks
from ponder.runs.trace_blocks import MAX_JSON_BYTES, MAX_RAW_BYTES, decode_records, decode_traces, pack_traces
from ponder.types import Problem, Score, Step, Trace, ids, user_messages


def deflated(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    chunk = bytes(1 << 20)
    parts = [packer.compress(chunk[: min(len(chunk), size - at)]) for at in range(0, size, len(chunk))]
    return b"".join(parts) + packer.flush()


def directory(json_size: int, stored: int, **columns: Any) -> bytes:
    data = {"traces": [["a", 1, 1, False]], "json": [json_size, stored], "columns": columns}
    return json.dumps(data).encode()


@pytest.mark.parametrize("kind", ["json", "column", "both"])
def test_block_that_would_inflate_beyond_the_limit_is_refused_unread(kind: str) -> None:
    texts = deflated(MAX_JSON_BYTES + 1) if kind == "json" else b"[]"
    size = MAX_JSON_BYTES + 1 if kind == "json" else len(texts)
    planes, columns = [], {}
    if kind != "json":
        count = MAX_RAW_BYTES // 4 if kind == "column" else MAX_RAW_BYTES // 8
        planes = [deflated(count)] * 4
        names = ["logprobs"] if kind == "column" else ["logprobs", "advantages"]
        columns = {name: [count, [len(plane) for plane in planes]] for name in names}
        planes *= len(names)
    body = b"".join([texts, *planes])
    assert len(body) < 2 << 20, "a small file"
    tracemalloc.start()
    try:
        for decode in (decode_traces, decode_records):
            with pytest.raises(ValueError, match="too large"):
                decode(directory(size, len(texts), **columns), 1, body)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_largest_block_that_a_reader_takes_is_bounded() -> None:
    assert MAX_JSON_BYTES <= 64 << 20 and MAX_RAW_BYTES <= 256 << 20


def with_tests(name: str, tests: str, text: str = "x") -> Trace:
    problem = Problem(name, user_messages("?"), tags={"tests": [{"input": tests, "output": "0"}]})
    return Trace(problem, [Step(None, text, ids([1]), np.zeros(1, np.float32))])


@pytest.mark.parametrize(
    ("trace", "cure"),
    [
        (with_tests("a", "1", "x" * 2000), "fewer steps, or sample fewer tokens"),
        (with_tests("a", "1 " * 1000), "leave this problem out, or keep less text"),
    ],
    ids=["steps", "problem"],
)
def test_trace_that_no_reader_would_take_is_refused_with_what_to_do(
    trace: Trace, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packed,) = pack_traces(0, [trace])
    monkeypatch.setattr(trace_blocks, "MAX_JSON_BYTES", 1000)
    with pytest.raises(RunError, match=rf"trace of problem 'a' cannot be kept.* bytes as JSON, over 1,000: .*{cure}"):
        packed.encode()
    monkeypatch.undo()
    monkeypatch.setattr(trace_blocks, "MAX_RAW_BYTES", 1000)
    with pytest.raises(RunError, match="bytes with its tokens, over 1,000: let the strategy grow fewer steps"):
        packed.encode()


@pytest.mark.parametrize("part", ["messages", "answer", "tags", "floats", "pruned", "reason", "scorer"])
def test_traces_whose_sum_is_too_large_are_written_in_several_blocks(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the text is, and if each character of it takes six bytes."""
    text = "\x00" * 3000
    monkeypatch.setattr(trace_blocks, "TARGET_CHARS", 1000)
    monkeypatch.setattr(trace_blocks, "MAX_JSON_BYTES", 20_000)
    traces = []
    for i in range(12):
        messages, tests = user_messages(text if part == "messages" else "?"), {"tests": [text]}
        tags: dict[str, Any] = tests if part == "tags" else {"x": [i / 7] * 600} if part == "floats" else {}
        problem = Problem(str(i), messages, tests if part == "answer" else None, tags)
        scores = {text if part == "scorer" else "judge": Score(1.0, text if part == "reason" else "")}
        pruned = text if part == "pruned" else ""
        traces.append(Trace(problem, [Step(None, "x", ids([1]), scores=scores, pruned=pruned)]))
    traces[0] = with_tests("0", "1")  # small: the next one does not join it
    decoded = []
    for packed in pack_traces(0, traces):
        directory, body = packed.encode()
        decoded += decode_traces(directory, len(packed.summaries), body)
    assert [t.problem for t in decoded] == [t.problem for t in traces]


def test_size_of_a_block_counts_its_problems() -> None:
    """The writer's backlog is bounded by it."""
    traces = [with_tests(str(i), "7 " * 100_000) for i in range(12)]
    blocks = list(pack_traces(0, traces))
    assert sum(packed.num_bytes for packed in blocks) == pytest.approx(12 * 200_000, rel=0.01)
    assert [len(packed.summaries) for packed in blocks] == [6, 6]


def test_tags_that_hold_themselves_are_refused() -> None:
    tags: dict[str, Any] = {}
    tags["tests"] = [tags, tags]
    (packed,) = pack_traces(0, [Trace(Problem("a", user_messages("?"), tags=tags), [Step(None, "?", ids([1]))])])
    with pytest.raises((ValueError, RecursionError)):
        packed.encode()
