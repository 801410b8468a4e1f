"""Traces as blocks: arrays in columns, everything else as JSON, both compressed.

A block holds traces of one step. Its body is the JSON of the traces, in which the length of an array stands for the
array, and then a column for each kind of array: token_ids, logprobs, advantages, notes/NAME. The directory, JSON too,
says what there is:

    {"traces": [[problem id, steps, tokens, failed], ...], "json": [size, stored size],
     "columns": {"token_ids": [values, [stored size of each plane]], ...}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ponder.errors import RunError
from ponder.runs import block_file
from ponder.runs.trace_columns import MAX_RATIO, deflate, inflate, num_planes, pack_column, unpack_column
from ponder.trace_json import array_dtype, trace_from_json, trace_to_json
from ponder.types import Trace, ids
from ponder.validate import MAX_INT32

# A block with so much gets no further trace, and a trace with so many characters gets a block of its own: so only a
# trace that is too large by itself makes a block that is, though a character may take six bytes as JSON.
TARGET_TOKENS, TARGET_CHARS = 1 << 16, 1 << 20
# Of a block before it is compressed, so that a small file cannot fill the memory: 20 million tokens with two numbers
# each, and a tree of 200,000 steps. Parsed JSON may take twenty times its bytes.
MAX_RAW_BYTES, MAX_JSON_BYTES = block_file.MAX_BODY_BYTES, 1 << 26
_MAX_COLUMNS = 1000
_STEP_CHARS = 100  # about what the JSON of a step takes beside its text
_FLOAT_CHARS = 20  # at most what the JSON of a float takes
_VALUE_CHARS = 8  # about what that of another number takes, and that of a text or a list beside what it holds


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What the directory says of a trace."""

    problem_id: str
    num_steps: int
    num_tokens: int
    failed: bool


@dataclass(slots=True)
class PackedTraces:
    """Traces of one step, copied, and not yet compressed: whoever made them may change them."""

    step: int
    summaries: list[TraceSummary] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    num_tokens: int = 0
    num_chars: int = 0

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return self.num_chars + sum(array.nbytes for arrays in self.columns.values() for array in arrays)

    def add(self, trace: Trace, num_chars: int) -> None:
        """`num_chars`: about what its JSON takes. Raises ValueError for arrays that cannot be kept, and then keeps
        nothing of the trace."""
        arrays: list[tuple[str, NDArray[Any]]] = []

        def take(name: str, array: NDArray[Any]) -> int:
            if array.ndim != 1:
                raise ValueError(f"{name} has {array.ndim} dimensions, not 1")
            arrays.append((name, ids(array) if name == "token_ids" else np.asarray(array, np.float32)))
            return len(array)

        self.records.append(trace_to_json(trace, take))
        num_tokens = 0
        for name, array in arrays:
            self.columns.setdefault(name, []).append(array)
            num_tokens += len(array) if name == "token_ids" else 0
        self.summaries.append(TraceSummary(trace.problem.id, len(trace.steps), num_tokens, bool(trace.failed)))
        self.num_tokens += num_tokens
        self.num_chars += num_chars

    def finish(self) -> None:
        """Copy the arrays, which their owner may change."""
        self.columns = {name: [np.concatenate(arrays)] for name, arrays in self.columns.items()}

    def encode(self) -> tuple[bytes, bytes]:
        """Directory and body of the block. Raises TypeError or ValueError for what is no plain data, and RunError for
        a trace that is too large."""
        text = json.dumps(self.records, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        raw = text.encode("utf-8", "surrogatepass")  # a text may hold half of a character
        if len(raw) > MAX_JSON_BYTES:
            raise self._too_large(f"{len(raw):,} bytes as JSON, over {MAX_JSON_BYTES:,}")
        if (size := len(raw) + sum(array.nbytes for (array,) in self.columns.values())) > MAX_RAW_BYTES:
            raise self._too_large(f"{size:,} bytes with its tokens, over {MAX_RAW_BYTES:,}", by_tokens=True)
        parts = [deflate(raw)]
        columns: dict[str, Any] = {}
        for name, (array,) in self.columns.items():
            planes = pack_column(array)
            columns[name] = [len(array), [len(plane) for plane in planes]]
            parts += planes
        rows = [[s.problem_id, s.num_steps, s.num_tokens, s.failed] for s in self.summaries]
        directory = {"traces": rows, "json": [len(raw), len(parts[0])], "columns": columns}
        return json.dumps(directory, separators=(",", ":")).encode(), b"".join(parts)

    def _too_large(self, size: str, by_tokens: bool = False) -> RunError:
        """The error for a block that is too large. It names the largest trace and says what to do."""
        sizes = [(_count_chars(r["problem"]), _count_chars(r["steps"]), r["problem"]["id"]) for r in self.records]
        in_problem, in_steps, problem_id = max(sizes, key=lambda s: s[0] + s[1])
        cure = "let the strategy grow fewer steps, or sample fewer tokens"
        if in_problem > in_steps and not by_tokens:
            cure = "leave this problem out, or keep less text in its messages, answer and tags, such as fewer tests"
        return RunError(f"the trace of problem {problem_id!r:.60} cannot be kept, for it takes {size}: {cure}")


def pack_traces(step: int, traces: Iterable[Trace]) -> Iterator[PackedTraces]:
    """Blocks of a sensible size with these traces, in order."""
    packed = PackedTraces(step)
    for trace in traces:
        num_chars = _count_trace_chars(trace)
        if packed.summaries and num_chars >= TARGET_CHARS:
            packed.finish()
            yield packed
            packed = PackedTraces(step)
        packed.add(trace, num_chars)
        if packed.num_tokens >= TARGET_TOKENS or packed.num_chars >= TARGET_CHARS:
            packed.finish()
            yield packed
            packed = PackedTraces(step)
    if packed.summaries:
        packed.finish()
        yield packed


def _count_trace_chars(trace: Trace) -> int:
    """About what the JSON of a trace takes. Nothing is encoded, so a long text costs no more time than a short one."""
    p, count = trace.problem, 0
    for step in trace.steps:
        count += len(step.text) + len(step.pruned) + _STEP_CHARS + _VALUE_CHARS * len(step.cites)
        for name, score in step.scores.items():
            count += len(name) + len(score.reason) + _FLOAT_CHARS * (1 + len(score.steps))
    try:
        return count + _count_chars((p.id, p.messages, p.answer, p.tags, p.style, p.answer_instruction, trace.failed))
    except RecursionError:
        return count  # JSON cannot be nested so deep: `encode` refuses it


def _count_chars(data: Any) -> int:
    """About what the JSON of plain data takes."""
    if isinstance(data, str):
        return len(data) + _VALUE_CHARS
    if isinstance(data, Mapping):
        data = [*data, *data.values()]
    if not isinstance(data, list | tuple):
        return _FLOAT_CHARS if isinstance(data, float) else _VALUE_CHARS
    # A problem may have thousands of tests, and the texts among them need no call.
    return _VALUE_CHARS + sum([len(v) + _VALUE_CHARS if type(v) is str else _count_chars(v) for v in data])


def parse_rows(directory: bytes, count: int) -> tuple[list[list[Any]], dict[str, Any]]:
    """Problem id, steps, tokens and whether it failed, of each trace of a block, and the whole directory. Raises
    ValueError if it is none."""
    try:
        data = json.loads(directory)
        rows = data["traces"]
        is_whole = len(rows) == count and all(map(_is_row, rows))
    except (TypeError, LookupError, RecursionError) as why:
        raise ValueError(f"its directory is none: {why}") from None
    if not is_whole:
        raise ValueError("its directory does not list its traces")
    return rows, data


def _is_row(row: Any) -> bool:
    return (
        type(row) is list
        and [type(value) for value in row] == [str, int, int, bool]
        and 0 <= row[1] <= MAX_INT32
        and 0 <= row[2] <= MAX_INT32
    )


def parse_directory(directory: bytes, count: int) -> list[TraceSummary]:
    """The summaries of a block's traces. Raises ValueError if it is no directory."""
    return [TraceSummary(*row) for row in parse_rows(directory, count)[0]]


def decode_traces(
    directory: bytes, count: int, body: bytes, restore: Callable[[dict[str, Any]], None] | None = None
) -> list[Trace]:
    """The traces of a block. Raises ValueError where it holds something else. `restore` is called with each record, to
    put back what is kept elsewhere."""
    rows, data = parse_rows(directory, count)
    with _no_trace_is_value_error():
        shapes = _check_sizes(data, body)
        records, columns = _read_records(data, body, restore), _read_columns(data, shapes, body)
        traces = [trace_from_json(record, columns.take) for record in records]
    if [t.problem.id for t in traces] != [row[0] for row in rows] or not columns.is_empty():
        raise ValueError("its directory does not fit its traces")
    return traces


def decode_records(
    directory: bytes, count: int, body: bytes, restore: Callable[[dict[str, Any]], None] | None = None
) -> list[dict[str, Any]]:
    """The traces of a block as they are stored: JSON, in which the length of an array stands for the array. For readers
    that need no arrays. Raises ValueError where it holds something else than traces."""
    rows, data = parse_rows(directory, count)
    with _no_trace_is_value_error():
        _check_sizes(data, body)
        records = _read_records(data, body, restore)
        ids_of = [record["problem"]["id"] for record in records]
    if ids_of != [row[0] for row in rows]:
        raise ValueError("its directory does not fit its traces")
    return records


@contextmanager
def _no_trace_is_value_error() -> Iterator[None]:
    """What is raised for JSON of another form becomes a ValueError."""
    try:
        yield
    except ValueError:
        raise
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError) as why:
        raise ValueError(f"it is no trace: {type(why).__name__}: {why}") from None


class _Columns:
    """Columns from which arrays are taken one after the other."""

    def __init__(self, columns: dict[str, NDArray[Any]]) -> None:
        self._columns, self._taken = columns, dict.fromkeys(columns, 0)

    def take(self, name: str, length: Any) -> NDArray[Any]:
        column, start = self._columns[name], self._taken[name]
        if type(length) is not int or not 0 <= length <= len(column) - start:
            raise ValueError(f"{name} holds fewer numbers than its steps")
        self._taken[name] = start + length
        return column[start : start + length].copy()

    def is_empty(self) -> bool:
        return all(self._taken[name] == len(column) for name, column in self._columns.items())


_Shapes = dict[str, tuple[int, list[int]]]  # by column, how many values it has and the stored size of each plane


def _check_sizes(data: Any, body: bytes) -> _Shapes:
    """The shapes of the columns. All sizes are checked before anything is made of them."""
    size, stored = data["json"]
    shapes = {name: (count, planes) for name, (count, planes) in data["columns"].items()}
    sizes = [size, stored, *(n for count, planes in shapes.values() for n in (count, *planes))]
    if any(type(n) is not int or n < 0 for n in sizes) or len(shapes) > _MAX_COLUMNS:
        raise ValueError("its directory has sizes that are none")
    if size > MAX_JSON_BYTES or size + 4 * sum(count for count, _ in shapes.values()) > MAX_RAW_BYTES:
        raise ValueError("it says that it is too large")
    if any(len(planes) != num_planes(array_dtype(name)) for name, (_, planes) in shapes.items()) or len(
        body
    ) != stored + sum(n for _, planes in shapes.values() for n in planes):
        raise ValueError("its body has another size than its directory says")
    raw_sizes = [
        (size, stored),
        *((count * 4 // len(planes), n) for count, planes in shapes.values() for n in planes),
    ]
    if any(raw_size > MAX_RATIO * stored_size for raw_size, stored_size in raw_sizes):
        raise ValueError("its body is too short for what its directory says")
    return shapes


def _read_records(data: Any, body: bytes, restore: Callable[[dict[str, Any]], None] | None) -> list[Any]:
    size, stored = data["json"]
    raw = bytes(inflate(memoryview(body)[:stored], size))
    records = json.loads(raw.decode("utf-8", "surrogatepass"), parse_constant=_reject_constant)
    if not isinstance(records, list):
        raise ValueError("its JSON is no list")
    if restore is not None:
        for record in records:
            restore(record)
    return records


def _read_columns(data: Any, shapes: _Shapes, body: bytes) -> _Columns:
    view, columns, at = memoryview(body), {}, data["json"][1]
    for name, (count, planes) in shapes.items():
        starts = [at + sum(planes[:i]) for i in range(len(planes) + 1)]
        pieces = [view[a:b] for a, b in pairwise(starts)]
        columns[name], at = unpack_column(pieces, count, array_dtype(name)), starts[-1]
    return _Columns(columns)


def _reject_constant(name: str) -> None:
    raise ValueError(f"it holds {name}")
