"""Blocks of traces from a stranger: a small file takes little memory, whatever it says."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from ponder.runs.trace_blocks import MAX_JSON_BYTES, MAX_RAW_BYTES, PackedTraces, decode_records, decode_traces
from ponder.types import Problem, Step, Trace, ids, user_messages


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


def test_traces_that_no_reader_would_take_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from ponder.runs import trace_blocks

    packed = PackedTraces(0)
    packed.add(Trace(Problem("a", user_messages("?")), [Step(None, "x" * 2000, ids([1]), np.zeros(1, np.float32))]))
    packed.finish()
    monkeypatch.setattr(trace_blocks, "MAX_JSON_BYTES", 1000)
    with pytest.raises(ValueError, match="over 1000"):
        packed.encode()
