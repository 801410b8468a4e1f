"""Traces of a run by step, problem or number, without parsing the ones that are not asked for.

The index reads the beginning of each line of `traces.jsonl`: its step and the id of its problem. A trace is parsed, and
its checksum compared, when it is read. The file may be growing: an unfinished last line is not in the index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ponder.errors import RunError
from ponder.runs.records import damaged_record, has_valid_checksum, without_checksum
from ponder.runs.symlinks import refuse_symlinks
from ponder.trace_json import trace_from_json
from ponder.types import Trace

_LINE_START = re.compile(rb'\{"(step|resumed)":(\d{1,18})[,}](?:"problem":\{"id":("(?:[^"\\]|\\.)*"))?')


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """Where a trace is. `number` counts the valid traces of the run, from 1 on."""

    number: int
    step: int
    problem_id: str
    line: int
    offset: int


def index_traces(folder: Path) -> list[TraceEntry]:
    """The traces that are valid after all resumptions, in the order in which they were written."""
    path = folder / "traces.jsonl"
    refuse_symlinks(folder)
    places: list[tuple[int, str, int, int]] = []  # step, problem, line, offset
    try:
        with open(path, "rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                at, offset = offset, offset + len(line)
                start = _LINE_START.match(line)
                if start is None or not line.endswith(b"}\n"):
                    continue
                if start[1] == b"resumed":
                    places = [place for place in places if place[0] < int(start[2])]
                elif start[3] is not None:
                    places.append((int(start[2]), json.loads(start[3]), number, at))
    except OSError as why:
        missing = isinstance(why, FileNotFoundError) and (folder / "job.json").is_file()
        text = f"{folder} holds no traces yet" if missing else f"{folder} is not a run directory: {why.strerror}"
        raise RunError(text) from None
    return [TraceEntry(i, *place) for i, place in enumerate(places, 1)]


def read_indexed(folder: Path, entries: Sequence[TraceEntry]) -> Iterator[tuple[TraceEntry, Trace]]:
    """These traces, one by one."""
    path = folder / "traces.jsonl"
    with open(path, "rb") as file:
        for entry in entries:
            file.seek(entry.offset)
            line = file.readline()
            if not has_valid_checksum(line):
                raise damaged_record(path, entry.line, "its checksum differs")
            try:
                trace = trace_from_json(json.loads(without_checksum(line)))
            except (KeyError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as why:
                raise damaged_record(path, entry.line, f"it is no trace: {why}") from None
            yield entry, trace
